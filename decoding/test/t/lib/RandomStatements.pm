=pod

=head1 NAME

RandomStatements - SQL statements at random, the same for the same seed

=head1 DESCRIPTION

Statements that give relations new files, change and drop them, and write to
them, inside and outside of transactions and savepoints.  It is known roughly
which tables there are, so that most statements succeed, and some do not.

=cut

package RandomStatements;

use strict;
use warnings;

# Numbers of our own: perl's rand() may differ between machines.
# Parameters: stream (let decoding send large transactions before they end)
sub new
{
	my ($class, $seed, %params) = @_;
	my $self = {
		state  => $seed,
		stream => $params{stream},
		number => 0,           # of names so far
		world  => { tables => {}, parts => {} },
		blocks => []           # what to go back to: begin, savepoints
	};
	return bless $self, $class;
}

# A number from 0 to $limit - 1
sub _random
{
	my ($self, $limit) = @_;
	$self->{state} = ($self->{state} * 1103515245 + 12345) % 2**31;
	return ($self->{state} >> 8) % $limit;
}

sub _pick
{
	my ($self, @list) = @_;
	return $list[ $self->_random(scalar @list) ];
}

sub _name
{
	my ($self, $prefix) = @_;
	return $prefix . ++$self->{number};
}

sub _copy
{
	my ($value) = @_;
	return { map { $_ => _copy($value->{$_}) } keys %$value } if ref $value eq 'HASH';
	return $value;
}

sub _enter { my ($self) = @_; push @{ $self->{blocks} }, _copy($self->{world}); return; }

my @actions = (
	[ 20, 'insert' ], [ 8, 'insert_wide' ], [ 8, 'update' ], [ 4, 'delete' ],
	[ 10, 'create' ],  [ 3, 'drop' ],   [ 5, 'truncate' ],
	[ 6, 'add_column' ], [ 3, 'add_column_rewriting' ], [ 3, 'alter_type' ], [ 1, 'drop_column' ],
	[ 3, 'cluster' ], [ 4, 'vacuum_full' ], [ 3, 'tablespace' ], [ 2, 'rename' ],
	[ 2, 'reindex' ], [ 2, 'persistence' ], [ 1, 'user_catalog' ], [ 3, 'partition' ],
	[ 1, 'catalog' ], [ 1, 'message' ], [ 4, 'subtransactions' ], [ 6, 'look_up' ],
	[ 14, 'open' ], [ 22, 'close' ], [ 6, 'decode' ]);
my $weights = 0;
$weights += $_->[0] foreach @actions;

# The next statement, or statements
sub next_statement
{
	my ($self) = @_;
	while (1)
	{
		my $at = $self->_random($weights);
		my $action;
		foreach (@actions)
		{
			$action = $_->[1];
			last if ($at -= $_->[0]) < 0;
		}
		my $method    = "_$action";
		my $statement = $self->$method;
		return $statement if defined $statement;
	}
}

# Ends the transaction that is open, if one is.
sub finish { my ($self) = @_; return @{ $self->{blocks} } ? $self->_end('COMMIT') : ''; }

sub _table
{
	my ($self) = @_;
	my @names = sort keys %{ $self->{world}{tables} };
	return @names ? $self->_pick(@names) : undef;
}

sub _insert
{
	my ($self) = @_;
	my $table = $self->_table // return;
	my $rows = $self->_pick(1, 1, 2, 5, 40);
	return "INSERT INTO $table (a) SELECT 'row ' || n FROM generate_series(1, $rows) n;";
}

sub _insert_wide
{
	my ($self) = @_;
	my $table = $self->_table // return;
	my $length = 1000 * $self->_pick(1, 3, 9);
	return "INSERT INTO $table (a) VALUES (repeat('w', $length));";
}

sub _update
{
	my ($self) = @_;
	my $table = $self->_table // return;
	return "UPDATE $table SET a = left(a, 20) || '+' WHERE id % 3 = " . $self->_random(3) . ';';
}

sub _delete
{
	my ($self) = @_;
	my $table = $self->_table // return;
	return "DELETE FROM $table WHERE id % 4 = " . $self->_random(4) . ';';
}

sub _create
{
	my ($self) = @_;
	return if keys %{ $self->{world}{tables} } > 40;
	my $table = $self->_name('t');
	my $kind = $self->_pick('', '', '', '', '', 'UNLOGGED', 'TEMP');
	my $tablespace = $kind ne 'TEMP' && $self->_random(5) == 0 ? ' TABLESPACE elsewhere' : '';
	$self->{world}{tables}{$table} = { kind => $kind, columns => 0 };
	return "CREATE $kind TABLE $table (id int PRIMARY KEY GENERATED ALWAYS AS IDENTITY, a text)$tablespace;"
	  . " ALTER TABLE $table ALTER a SET STORAGE external;";
}

sub _drop
{
	my ($self) = @_;
	my $table = $self->_table // return;
	delete $self->{world}{tables}{$table};
	return "DROP TABLE $table;";
}

sub _truncate
{
	my ($self) = @_;
	my @tables = map { $self->_table // return } 1 .. $self->_pick(1, 1, 3);
	my %unique = map { $_ => 1 } @tables;
	return 'TRUNCATE ' . join(', ', sort keys %unique) . ';';
}

sub _add_column
{
	my ($self) = @_;
	my $table = $self->_table // return;
	my $column = $self->_name('c');
	$self->{world}{tables}{$table}{columns}++;
	return "ALTER TABLE $table ADD COLUMN $column int" . $self->_pick('', ' DEFAULT 5') . ';';
}

sub _add_column_rewriting
{
	my ($self) = @_;
	my $table = $self->_table // return;
	my $column = $self->_name('c');
	return "ALTER TABLE $table ADD COLUMN $column int DEFAULT (random() * 0)::int + 6;";
}

sub _alter_type
{
	my ($self) = @_;
	my $table = $self->_table // return;
	return "ALTER TABLE $table ALTER COLUMN id TYPE " . $self->_pick('bigint', 'int') . ';';
}

sub _drop_column
{
	my ($self) = @_;
	my $table = $self->_table // return;
	return "ALTER TABLE $table DROP COLUMN IF EXISTS c" . (1 + $self->_random($self->{number} + 1)) . ';';
}

sub _cluster
{
	my ($self) = @_;
	my $table = $self->_table // return;
	return "CLUSTER $table USING ${table}_pkey;";
}

sub _vacuum_full
{
	my ($self) = @_;
	return if @{ $self->{blocks} };
	my $table = $self->_table // return;
	return "VACUUM FULL $table;";
}

sub _tablespace
{
	my ($self) = @_;
	my $table = $self->_table // return;
	return "ALTER TABLE $table SET TABLESPACE " . $self->_pick('elsewhere', 'pg_default') . ';';
}

sub _rename
{
	my ($self) = @_;
	my $table = $self->_table // return;
	my $name = $self->_name('t');
	$self->{world}{tables}{$name} = delete $self->{world}{tables}{$table};
	return "ALTER TABLE $table RENAME TO $name; ALTER INDEX ${table}_pkey RENAME TO ${name}_pkey;";
}

sub _reindex
{
	my ($self) = @_;
	my $table = $self->_table // return;
	return "REINDEX TABLE $table;";
}

sub _persistence
{
	my ($self) = @_;
	my $table = $self->_table // return;
	return "ALTER TABLE $table SET " . $self->_pick('LOGGED', 'UNLOGGED') . ';';
}

sub _user_catalog
{
	my ($self) = @_;
	my $table = $self->_table // return;
	return "ALTER TABLE $table SET (user_catalog_table = " . $self->_pick('true', 'false') . ');';
}

# Partitioned tables, whose partitions come and go
sub _partition
{
	my ($self) = @_;
	my $parts = $self->{world}{parts};
	my ($parent) = keys %$parts ? $self->_pick(sort keys %$parts) : ();
	if (!defined $parent || $self->_random(6) == 0)
	{
		$parent = $self->_name('p');
		$parts->{$parent} = {};
		return "CREATE TABLE $parent (id int, a text, PRIMARY KEY (id)) PARTITION BY LIST (id);";
	}
	my @children = sort keys %{ $parts->{$parent} };
	if (!@children || $self->_random(3) == 0)
	{
		my $child = $self->_name('q');
		my $value = $self->{number};
		$parts->{$parent}{$child} = $value;
		return "CREATE TABLE $child PARTITION OF $parent FOR VALUES IN ($value);"
		  . " INSERT INTO $parent VALUES ($value, 'part');";
	}
	my $child = $self->_pick(@children);
	my $value = $parts->{$parent}{$child};
	my $what = $self->_pick('detach', 'truncate', 'move', 'update', 'alter', 'drop');
	return "ALTER TABLE $parent DETACH PARTITION $child; UPDATE $child SET a = 'alone';"
	  . " ALTER TABLE $parent ATTACH PARTITION $child FOR VALUES IN ($value);"
	  if $what eq 'detach';
	return "TRUNCATE $parent; INSERT INTO $parent VALUES ($value, 'again');" if $what eq 'truncate';
	return "ALTER TABLE $child SET TABLESPACE " . $self->_pick('elsewhere', 'pg_default') . ';'
	  if $what eq 'move';
	return "UPDATE $parent SET a = a || '.';" if $what eq 'update';
	return "ALTER TABLE $parent ADD COLUMN " . $self->_name('c') . " int DEFAULT 1;" if $what eq 'alter';
	delete $parts->{$parent}{$child};
	return "DROP TABLE $child;";
}

# Mapped and shared catalogs, and others
sub _catalog
{
	my ($self) = @_;
	return if @{ $self->{blocks} };
	return 'VACUUM FULL ' . $self->_pick(qw(pg_class pg_attribute pg_type pg_index pg_database)) . ';';
}

sub _message
{
	my ($self) = @_;
	return 'SELECT 1 FROM pg_logical_emit_message(' . $self->_pick('true', 'false') . ", 'random', 'message');";
}

# Tables made, changed and left in subtransactions, some of which fail
sub _subtransactions
{
	my ($self) = @_;
	my $prefix = $self->_name('s');
	my $times = $self->_pick(2, 5, 12);
	my $every = $self->_pick(2, 3);
	return "DO \$\$ BEGIN FOR i IN 1 .. $times LOOP BEGIN"
	  . " EXECUTE format('CREATE TABLE ${prefix}_%s (id int PRIMARY KEY, a text)', i);"
	  . " EXECUTE format('INSERT INTO ${prefix}_%s VALUES (1, ''sub'')', i);"
	  . " EXECUTE format('" . $self->_pick("TRUNCATE ${prefix}_%s",
		"ALTER TABLE ${prefix}_%s ADD COLUMN b int DEFAULT 1", "ALTER TABLE ${prefix}_%s ALTER id TYPE bigint") . "', i);"
	  . " EXECUTE format('INSERT INTO ${prefix}_%s VALUES (2, ''sub'')', i);"
	  . " IF i % $every = 0 THEN RAISE EXCEPTION 'no'; END IF;"
	  . " EXCEPTION WHEN raise_exception THEN NULL; END; END LOOP; END \$\$;";
}

# File numbers differ between servers, what they belong to does not.
sub _look_up
{
	my ($self) = @_;
	my $table = $self->_table // 'pg_class';
	$table = $self->_pick('pg_class', 'pg_attribute', 'pg_proc') if $self->_random(6) == 0;
	return "SELECT pg_relation_filenode('$table') AS file \\gset\n"
	  . "SELECT pg_filenode_relation((SELECT reltablespace FROM pg_class WHERE oid = '$table'::regclass), :file)::regclass;";
}

# Decoding in the session that does all this
sub _decode
{
	my ($self) = @_;
	return if @{ $self->{blocks} };
	my $options = q{'include-xids', '0', 'include-rewrites', '1'};
	$options .= q{, 'stream-changes', '1'} if $self->{stream};
	return "SELECT data FROM pg_logical_slot_get_changes('walk', NULL, NULL, $options);";
}

# ---- transactions and savepoints

sub _open
{
	my ($self) = @_;
	my $depth = @{ $self->{blocks} };
	return if $depth > 6;
	$self->_enter;
	return $depth ? "SAVEPOINT s$depth;" : 'BEGIN;';
}

sub _close
{
	my ($self) = @_;
	my $depth = @{ $self->{blocks} } - 1;
	return if $depth < 0;
	if ($depth > 0)
	{
		my $world = pop @{ $self->{blocks} };
		return "RELEASE s$depth;" if $self->_random(2);
		$self->{world} = $world;
		return "ROLLBACK TO s$depth; RELEASE s$depth;";
	}
	return $self->_end($self->_pick('COMMIT', 'COMMIT', 'ROLLBACK', 'PREPARE', 'PREPARE'));
}

sub _end
{
	my ($self, $how) = @_;
	my $name = $self->_name('x');
	$self->{world} = $self->{blocks}[0] if $how =~ /ROLLBACK/;
	$self->{blocks} = [];
	return "$how;" if $how !~ /PREPARE/;

	# A transaction with a temporary table cannot be prepared, and is rolled
	# back.  What is known of the tables is wrong then, for a while.
	#
	# There is no ROLLBACK PREPARED: PostgreSQL itself can fail to decode such a
	# transaction ("could not map filenode"), if it had subtransactions and what
	# they wrote to the catalogs has been cleaned up meanwhile.
	return "PREPARE TRANSACTION '$name'; SELECT 1 FROM pg_logical_emit_message(true, 'random', 'in between');"
	  . " COMMIT PREPARED '$name';";
}

1;
