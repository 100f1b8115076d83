=pod

=head1 NAME

PgWire - a PostgreSQL session that keeps every message of the protocol in order

=head1 SYNOPSIS

  my $session = PgWire->new(host => $socket_dir, port => $port,
      dbname => 'postgres', user => 'postgres');
  my $result = $session->query(q(LISTEN a; NOTIFY a, 'hello'));
  $result->types;              # 'CCAZ'
  $result->error;              # undef, or { C => '42601', M => ..., H => ... }
  $session->wait_for(1);       # the notification, as { channel, payload, pid }

=head1 DESCRIPTION

psql and libpq say that a notification came, but not where it stood between
the other messages, and "before ReadyForQuery of the same command" is a promise
about just that.  This client speaks protocol version 3 over a Unix-domain
socket with trust authentication, hands out the messages as they came, and is
small enough to open a thousand sessions in one process.

Nothing here waits for a fixed time: every wait is for a message and ends with
an exception at a deadline (C<PG_TEST_TIMEOUT_DEFAULT> seconds, 180 if unset).

=cut

package PgWire;

use strict;
use warnings;

use Carp;
use Errno qw(EAGAIN EINTR EWOULDBLOCK);
use IO::Socket::UNIX;
use Socket qw(SOCK_STREAM);
use Time::HiRes qw(time);

our @CARP_NOT = ('PgWire::Result');

my $timeout = $ENV{PG_TEST_TIMEOUT_DEFAULT} || 180;

# Opens a session: host is the socket directory.  Dies with the server's
# message if the server refuses.
sub new
{
	my ($class, %args) = @_;
	return $class->start(%args)->finish_start;
}

# The two halves of new(), so that many sessions can start side by side.
sub start
{
	my ($class, %args) = @_;
	my $path   = "$args{host}/.s.PGSQL.$args{port}";
	my $socket = IO::Socket::UNIX->new(Type => SOCK_STREAM, Peer => $path)
	  or croak "could not connect to $path: $!";
	$socket->blocking(0);
	my $self = bless {
		socket        => $socket,
		input         => '',
		notifications => [],
		eof           => 0,
	}, $class;

	my %parameters = (
		user            => $args{user},
		database        => $args{dbname},
		client_encoding => $args{client_encoding} // 'UTF8');
	$parameters{options} = $args{options} if defined $args{options};
	my $body = pack('N', 3 << 16);
	$body .= "$_\0$parameters{$_}\0" for sort keys %parameters;
	$body .= "\0";
	$self->_write(pack('N', length($body) + 4) . $body);
	return $self;
}

sub finish_start
{
	my ($self) = @_;
	while (1)
	{
		my $message = $self->receive;
		$self->{pid} = $message->{pid} if $message->{type} eq 'K';
		return $self if $message->{type} eq 'Z';
		croak "server refused the connection: $message->{fields}{M}"
		  if $message->{type} eq 'E';
		croak 'server closed the connection at start-up'
		  if $message->{type} eq 'EOF';
		croak 'only trust authentication is supported'
		  if $message->{type} eq 'R' && unpack('N', $message->{body}) != 0;
	}
}

# PID of the server process of this session.
sub pid { return $_[0]->{pid}; }

# Ends the session as a client should.
sub close
{
	my ($self) = @_;
	$self->send('X', '');
	$self->hang_up;
	return;
}

# Ends the session as a client does that dies.
sub hang_up
{
	my ($self) = @_;
	$self->{socket}->close;
	return;
}

# ---- simple query protocol

# Runs $sql and returns the messages up to ReadyForQuery as a PgWire::Result.
sub query
{
	my ($self, $sql) = @_;
	$self->send_query($sql);
	return $self->result;
}

# The same, and dies if the server reports an error.
sub run
{
	my ($self, $sql) = @_;
	my $result = $self->query($sql);
	my $error  = $result->error;
	croak "$error->{S}: $error->{M} ($error->{C}) in: $sql" if $error;
	return $result;
}

# First column of the first row.
sub value
{
	my ($self, $sql) = @_;
	return $self->run($sql)->rows->[0][0];
}

sub send_query
{
	my ($self, $sql) = @_;
	return $self->send('Q', "$sql\0");
}

# ---- extended query protocol: each sends one message

sub send_parse
{
	my ($self, $name, $sql) = @_;
	return $self->send('P', "$name\0$sql\0" . pack('n', 0));
}

# Parameters and results in text format.
sub send_bind
{
	my ($self, $name, @values) = @_;
	my $body = "\0$name\0" . pack('n n', 0, scalar @values);
	$body .= defined $_ ? pack('N/a*', $_) : pack('N', 0xFFFFFFFF)
	  for @values;
	return $self->send('B', $body . pack('n', 0));
}

sub send_execute { return $_[0]->send('E', "\0" . pack('N', 0)); }
sub send_sync    { return $_[0]->send('S', ''); }
sub send_flush   { return $_[0]->send('H', ''); }

# Parse, Bind and Execute of the unnamed statement, without a Sync.
sub send_statement
{
	my ($self, $sql, @values) = @_;
	$self->send_parse('', $sql);
	$self->send_bind('', @values);
	return $self->send_execute;
}

# Function call by OID ("fast path"), arguments and result in text format.
sub send_function_call
{
	my ($self, $oid, @values) = @_;
	my $body = pack('N n n', $oid, 0, scalar @values);
	$body .= pack('N/a*', $_) for @values;
	return $self->send('F', $body . pack('n', 0));
}

# ---- messages

# Sends one message of the given type.
sub send
{
	my ($self, $type, $body) = @_;
	$self->_write($type . pack('N', length($body) + 4) . $body);
	return $self;
}

# Reads up to ReadyForQuery, or to the end of the connection.
sub result
{
	my ($self) = @_;
	my @messages;
	do { push @messages, $self->receive } until $messages[-1]{type} =~ /^(?:Z|EOF)$/;
	return PgWire::Result->new(@messages);
}

# Reads up to and with the first message of $type.
sub receive_until
{
	my ($self, $type) = @_;
	my @messages;
	do
	{
		push @messages, $self->receive;
		croak "connection ended while waiting for message $type"
		  if $messages[-1]{type} eq 'EOF' && $type ne 'EOF';
	} until $messages[-1]{type} eq $type;
	return PgWire::Result->new(@messages);
}

# The next message.  The end of the connection is a message of type 'EOF'.
# A notification is also kept for wait_for() and notifications_until().
sub receive
{
	my ($self) = @_;
	my $deadline = time + $timeout;
	while (1)
	{
		my $message = $self->_next_message;
		if ($message)
		{
			push @{ $self->{notifications} }, $message
			  if $message->{type} eq 'A';
			return $message;
		}
		return { type => 'EOF', body => '' } if $self->{eof};
		$self->_wait_socket('', $deadline);
		$self->_read_available;
	}
}

# ---- notifications

# The next $count notifications, waiting for them if need be.
sub wait_for
{
	my ($self, $count) = @_;
	$self->_receive_notification
	  while @{ $self->{notifications} } < $count;
	return splice @{ $self->{notifications} }, 0, $count;
}

# All notifications before the one given, which must come.  A test that
# something is not delivered sends such a fence after it.
sub notifications_until
{
	my ($self, $channel, $payload) = @_;
	my @before;
	while (1)
	{
		my ($notification) = $self->wait_for(1);
		return @before
		  if $notification->{channel} eq $channel
		  && $notification->{payload} eq $payload;
		push @before, $notification;
	}
}

# Notifications that have come with other messages and were not asked for yet.
sub take_notifications
{
	my ($self) = @_;
	return splice @{ $self->{notifications} };
}

# Reads what an idle session was sent so far, without waiting, so that the
# server process is not held up by a full socket.
sub receive_available
{
	my ($self) = @_;
	my $length;
	do
	{
		$length = length $self->{input};
		$self->_read_available;
	} until length $self->{input} == $length;
	while (my $message = $self->_next_message)
	{
		_expect_notification($message);
		push @{ $self->{notifications} }, $message if $message->{type} eq 'A';
	}
	return;
}

# Reads what there is, and keeps it for later.
sub read_ahead
{
	my ($self) = @_;
	$self->_read_available;
	return;
}

sub _receive_notification
{
	my ($self) = @_;
	_expect_notification($self->receive);
	return;
}

# What comes to a session that has not asked for anything: notifications,
# notices and changed parameters.
sub _expect_notification
{
	my ($message) = @_;
	croak 'connection ended while waiting for a notification'
	  if $message->{type} eq 'EOF';
	croak "unexpected message $message->{type} while waiting for a notification"
	  . ($message->{fields} ? ": $message->{fields}{M}" : '')
	  if $message->{type} !~ /^[ANS]$/;
	return;
}

# ---- socket

# Reads while it writes: a server that cannot get rid of its answers stops
# reading, and both sides would wait for each other.
sub _write
{
	my ($self, $bytes) = @_;
	my $deadline = time + $timeout;
	while (length $bytes)
	{
		my $written = syswrite($self->{socket}, $bytes);
		if (defined $written)
		{
			substr($bytes, 0, $written, '');
		}
		elsif ($!{EAGAIN} || $!{EWOULDBLOCK} || $!{EINTR})
		{
			$self->_wait_socket('write', $deadline);
			$self->_read_available;
		}
		else
		{
			# The server has gone: what it said before, and the end of the
			# connection, are still to be read.
			return;
		}
	}
	return;
}

sub _wait_socket
{
	my ($self, $write, $deadline) = @_;
	my $left = $deadline - time;
	croak "no answer from server process $self->{pid} within $timeout s"
	  if $left <= 0;
	vec(my $set = '', fileno($self->{socket}), 1) = 1;
	select(my $readable = $set, my $writable = $write ? $set : undef,
		undef, $left);
	return;
}

sub _read_available
{
	my ($self) = @_;
	my $got = sysread($self->{socket}, $self->{input}, 65536,
		length $self->{input});
	if (defined $got)
	{
		$self->{eof} = 1 if $got == 0;
	}
	elsif (!($!{EAGAIN} || $!{EWOULDBLOCK} || $!{EINTR}))
	{
		$self->{eof} = 1;
	}
	return;
}

# Takes one complete message off the input, or returns nothing.
sub _next_message
{
	my ($self) = @_;
	return if length $self->{input} < 5;
	my ($type, $length) = unpack('a N', $self->{input});
	return if length $self->{input} < $length + 1;
	my $body = substr($self->{input}, 5, $length - 4);
	substr($self->{input}, 0, $length + 1, '');

	my %message = (type => $type, body => $body);
	if ($type eq 'A')
	{
		@message{qw(pid channel payload)} = unpack('N Z* Z*', $body);
	}
	elsif ($type eq 'D')
	{
		my $count  = unpack('n', $body);
		my $offset = 2;
		for (1 .. $count)
		{
			my $size = unpack('l>', substr($body, $offset, 4));
			$offset += 4;
			push @{ $message{values} },
			  $size < 0 ? undef : substr($body, $offset, $size);
			$offset += $size if $size > 0;
		}
	}
	elsif ($type eq 'E' || $type eq 'N')
	{
		$message{fields} =
		  { map { substr($_, 0, 1) => substr($_, 1) } split /\0/, $body };
	}
	elsif ($type eq 'K')
	{
		$message{pid} = unpack('N', $body);
	}
	elsif ($type eq 'C')
	{
		$message{tag} = unpack('Z*', $body);
	}
	elsif ($type eq 'Z')
	{
		$message{status} = $body;
	}
	return \%message;
}

=head1 PgWire::Result

The messages that answered one request.

=cut

package PgWire::Result;

sub new
{
	my ($class, @messages) = @_;
	return bless { messages => \@messages }, $class;
}

sub messages { return @{ $_[0]->{messages} }; }

# The message types in order, for example 'TDCAZ'.  A connection that ended
# shows as '$'.
sub types
{
	return join '', map { $_->{type} eq 'EOF' ? '$' : $_->{type} } $_[0]->messages;
}

sub rows { return [ map { $_->{values} } grep { $_->{type} eq 'D' } $_[0]->messages ]; }

# Fields of the first error by their letter in the protocol: C is the SQLSTATE,
# M the message, D the detail, H the hint.
sub error
{
	my ($error) = grep { $_->{type} eq 'E' } $_[0]->messages;
	return $error ? $error->{fields} : undef;
}

sub notifications { return grep { $_->{type} eq 'A' } $_[0]->messages; }

# Transaction status at ReadyForQuery: I, T or E.
sub status { return $_[0]->{messages}[-1]{status}; }

1;
