# Needs: pg_pinpoint_decoding
#
# docs/reference.md agrees with the server: settings with type, default and context,
# views with columns, types and privileges, functions with arguments, result and
# privileges.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $page = slurp_file("$FindBin::RealBin/../../../docs/reference.md");
my $node = new_node('main', preload => 'pg_pinpoint, pg_pinpoint_decoding');
my $session = connect_to($node);
$session->run('CREATE EXTENSION pg_pinpoint_decoding');

# The cells of all rows of tables whose first cell is code.  A view has the columns
# that follow its heading.
my (@settings, @functions, %columns, %privileges, $view);
foreach my $line (split /\n/, $page)
{
	if ($line =~ /^#/)
	{
		($view) = $line =~ /^### `(\w+\.\w+)`$/;
	}
	elsif ($line =~ /^\| `/)
	{
		my @cells = map { s/^\s+|\s+$|`//gr } split /\|/, substr($line, 1);
		if ($cells[0] =~ /\)$/)
		{
			push @functions, join ' | ', @cells[ 0 .. 2 ];
		}
		elsif ($cells[0] =~ /^pinpoint\w*\./)
		{
			push @settings, join ' | ', @cells[ 0 .. 3 ];
		}
		elsif (defined $view)
		{
			push @{ $columns{$view} }, "$cells[0] $cells[1]";
		}
	}
	elsif (defined $view && $line =~ /Privileges: `(\w+)`/)
	{
		$privileges{$view} = $1;
	}
}

# The values of the first column of a query, as they come, or sorted.
sub values_of
{
	my ($sql) = @_;
	return [ map { $_->[0] } @{ $session->run($sql)->rows } ];
}

sub sorted_values_of
{
	my ($sql) = @_;
	return [ sort @{ values_of($sql) } ];
}

# Settings that are for developers are not listed there, and not in the page.
is_deeply([ sort @settings ], sorted_values_of(q(
	SELECT concat_ws(' | ', name, vartype, current_setting(name), context)
	  FROM pg_settings
	 WHERE name LIKE 'pinpoint%' AND name <> 'pinpoint.debug_fault')), 'settings');
is_deeply(values_of(q(SELECT name FROM pg_settings WHERE name LIKE 'pinpoint%' AND source <> 'default')),
	[], 'they have their defaults');
is($session->value(q{SELECT current_setting('pinpoint.debug_fault', true)}),
	has_faults() ? 'none' : undef, 'faults can be planted only in a build with assertions');

my $views = sorted_values_of(q(
	SELECT oid::regclass::text FROM pg_class
	 WHERE relkind = 'v' AND relnamespace IN ('pinpoint'::regnamespace, 'pinpoint_decoding'::regnamespace)));
cmp_ok(scalar @$views, '>', 6, 'there are views');
is_deeply([ sort keys %columns ], $views, 'views');
foreach my $name (@$views)
{
	is_deeply($columns{$name}, values_of(qq(
		SELECT attname || ' ' || format_type(atttypid, atttypmod) FROM pg_attribute
		 WHERE attrelid = '$name'::regclass AND attnum > 0 ORDER BY attnum)), "columns of $name");
	is($privileges{$name}, $session->value(qq(
		SELECT string_agg(CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END, ', ')
		  FROM pg_class, aclexplode(relacl) WHERE oid = '$name'::regclass AND grantee <> relowner)), "privileges on $name");
}

# Arguments with OUT parameters are described in words.
is_deeply([ sort @functions ], sorted_values_of(q(
	SELECT concat_ws(' | ',
	                 format('%s.%s(%s)', pronamespace::regnamespace, proname,
	                        array_to_string(ARRAY(
	                            SELECT CASE mode WHEN 'v' THEN 'VARIADIC ' WHEN 'b' THEN 'INOUT ' ELSE '' END || quote_ident(name) || ' ' || format_type(type, NULL)
	                              FROM unnest(coalesce(proallargtypes, proargtypes::oid[]), proargnames, proargmodes)
	                                   WITH ORDINALITY AS a (type, name, mode, n)
	                             WHERE mode IS NULL OR mode IN ('i', 'v', 'b') ORDER BY n), ', ')),
	                 CASE prokind WHEN 'p' THEN 'procedure' ELSE pg_get_function_result(p.oid) END,
	                 coalesce((SELECT string_agg(CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END, ', ')
	                             FROM aclexplode(coalesce(proacl, acldefault('f', proowner))) WHERE grantee <> proowner), 'superuser'))
	  FROM pg_proc AS p
	 WHERE pronamespace IN ('pinpoint'::regnamespace, 'pinpoint_decoding'::regnamespace))), 'functions');

$session->close;

done_testing();
