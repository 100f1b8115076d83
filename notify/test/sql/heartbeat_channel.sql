-- Nobody but the server notifies on the channel of the heartbeat.

NOTIFY pinpoint_heartbeat;
\echo :SQLSTATE
NOTIFY PINPOINT_HEARTBEAT, 'folded to lower case';
SELECT pg_notify('pinpoint_heartbeat', 'x');
\echo :SQLSTATE
SELECT pinpoint.notify('pinpoint_heartbeat', 'x');
DO $$ BEGIN PERFORM pg_notify('pinpoint_heartbeat', 'x'); END $$;
-- with the engine off as well, as long as it comes by
SET pinpoint.enabled = off;
NOTIFY pinpoint_heartbeat;
RESET pinpoint.enabled;
-- other names are other channels
NOTIFY "Pinpoint_heartbeat";
SELECT pg_notify('pinpoint_heartbeat ', 'x');

-- it is not shared
SET pinpoint.shared_channels = '*';
LISTEN pinpoint_heartbeat;
LISTEN other;
SELECT channel, shared FROM pinpoint.listening ORDER BY channel;
UNLISTEN *;
RESET pinpoint.shared_channels;

-- a database without the extension is left alone
SELECT current_database() AS here \gset
CREATE DATABASE heartbeat_without TEMPLATE template0;
\connect heartbeat_without
NOTIFY pinpoint_heartbeat, 'its own way';
LISTEN pinpoint_heartbeat;
SELECT pg_listening_channels();
CREATE EXTENSION pg_pinpoint;
SELECT count(*) FROM pinpoint.listening;
NOTIFY pinpoint_heartbeat;
LISTEN pinpoint_heartbeat;
SELECT channel, shared FROM pinpoint.listening;
\connect :"here"
DROP DATABASE heartbeat_without;
