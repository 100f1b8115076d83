-- With pinpoint.enabled = off in the configuration, notifications take PostgreSQL's own path.
SHOW pinpoint.enabled;
NOTIFY c;
SELECT count(*) FROM pinpoint.stat_notify;
