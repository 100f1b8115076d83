# Tables that are created and written to while a slot keeps the WAL, and decoded
# afterwards: pg_class has the rows of all of them, and a snapshot of decoding sees those
# that were there by then.  Reading ahead must not go through the others again and again.
#
# What is counted are the entries of pg_class's index that the decoding session reads, and
# that is done on the stock server, too.
#
# Needs: test_decoding

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use DecodingTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $TABLES = 600;

my $node = new_server('main', conf => "logical_decoding_work_mem = 64kB\ntrack_counts = on");
my %slots = (
	'a transaction for each table' => [ 'many', q{'stream-changes', '0'} ],
	'one transaction, streamed'    => [ 'one',  q{'stream-changes', '1'} ]);

create_slot($node, 'many', 'test_decoding');
$node->safe_psql('postgres', qq{
	DO \$\$
	BEGIN
		FOR n IN 1 .. $TABLES LOOP
			EXECUTE format('CREATE TABLE many_%s (a int)', n);
			EXECUTE format('INSERT INTO many_%s VALUES (1)', n);
			COMMIT;
		END LOOP;
	END
	\$\$});
$node->safe_psql('postgres', q{SELECT pg_logical_emit_message(true, 'test', 'the end of many')});
my $end_of_many = $node->lsn('insert');
create_slot($node, 'one', 'test_decoding');
$node->safe_psql('postgres', qq{
	DO \$\$
	BEGIN
		FOR n IN 1 .. $TABLES LOOP
			EXECUTE format('CREATE TABLE one_%s (a int)', n);
			EXECUTE format('INSERT INTO one_%s SELECT generate_series(1, 20)', n);
		END LOOP;
	END
	\$\$});
my %end = (many => $end_of_many, one => $node->lsn('insert'));

# Decodes; returns the number of changes, and how many entries of the index were read.
sub decode
{
	my ($slot, $options) = @_;
	my $output = $node->safe_psql('postgres', qq{
		BEGIN;
		SELECT count(*) FROM pg_logical_slot_peek_changes('$slot', '$end{$slot}', NULL, $options);
		SELECT pg_stat_get_xact_tuples_returned('pg_class_tblspc_relfilenode_index'::regclass);
		COMMIT});
	return split /\n/, $output;
}

my %stock = map { $_ => [ decode(@{ $slots{$_} }) ] } keys %slots;
with_library($node);
foreach my $name (sort keys %slots)
{
	my ($changes, $read) = decode(@{ $slots{$name} });
	my ($stock_changes, $stock_read) = @{ $stock{$name} };
	cmp_ok($stock_changes, '>', $TABLES, "$name: there are changes");
	cmp_ok($stock_read, '>=', $TABLES, 'stock PostgreSQL looks for each table');
	is($changes, $stock_changes, 'the library gives the same changes');
	cmp_ok($read, '<', 6 * $stock_read, 'and reads no more than some times the entries of the index');
	diag("$name: $read entries read, $stock_read without the library");
}

$node->stop;
done_testing();
