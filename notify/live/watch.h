/*-------------------------------------------------------------------------
 *
 * watch.h
 *		pinpoint.watch() and pinpoint.unwatch().
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_WATCH_H
#define PINPOINT_WATCH_H

extern void pinpoint_watch_register_provider(void);
extern void pinpoint_watch_before_security_label(const char *provider);
extern void pinpoint_watch_inheritance_changed(Oid child, Oid parent);
extern void pinpoint_watch_labels_changed(Oid relid);
extern void pinpoint_watch_remove_all(void);
extern void pinpoint_watch_labels_take_effect(void);

#endif							/* PINPOINT_WATCH_H */
