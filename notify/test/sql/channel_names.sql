-- Channel names are identifiers: folded, quoted, cut at 63 bytes as any other.

-- folding and quoting
LISTEN Folded;
LISTEN "Quoted";
LISTEN "with space";
LISTEN "with ""quotes""";
LISTEN "semi;colon, comma";
LISTEN "select";
LISTEN listen;
LISTEN _1;
LISTEN "1";
LISTEN U&"\0061\0062";
SELECT * FROM pg_listening_channels() ORDER BY 1;
UNLISTEN FOLDED;
UNLISTEN "quoted";
UNLISTEN "QUOTED";
UNLISTEN ab;
SELECT * FROM pg_listening_channels() ORDER BY 1;
UNLISTEN *;

-- reserved words need quotes
LISTEN select;
NOTIFY select;

-- a qualified name is not a channel
LISTEN public.channel;
NOTIFY public.channel;

-- 63 bytes and more: cut, with a notice, by LISTEN, UNLISTEN and NOTIFY alike
LISTEN c23456789_123456789_123456789_123456789_123456789_123456789_123;
SELECT channel, octet_length(channel) FROM pg_listening_channels() AS channel;
UNLISTEN *;
LISTEN c23456789_123456789_123456789_123456789_123456789_123456789_1234;
NOTIFY c23456789_123456789_123456789_123456789_123456789_123456789_xyz4;
SELECT channel, octet_length(channel) FROM pg_listening_channels() AS channel;
UNLISTEN c23456789_123456789_123456789_123456789_123456789_123456789_1235;
SELECT count(*) FROM pg_listening_channels();

-- cut between characters, never within one: 31 characters of two bytes remain
LISTEN "ßßßßßßßßßßßßßßßßßßßßßßßßßßßßßßßßßß";
SELECT channel, char_length(channel), octet_length(channel)
  FROM pg_listening_channels() AS channel;
UNLISTEN "ßßßßßßßßßßßßßßßßßßßßßßßßßßßßßßß";
SELECT count(*) FROM pg_listening_channels();
LISTEN "ピンポイント";
LISTEN "🐘";
SELECT * FROM pg_listening_channels() ORDER BY 1;
UNLISTEN "🐘";
SELECT * FROM pg_listening_channels() ORDER BY 1;
UNLISTEN *;
