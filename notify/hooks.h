/*-------------------------------------------------------------------------
 *
 * hooks.h
 *		The hooks that this library installs.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_HOOKS_H
#define PINPOINT_HOOKS_H

extern void pinpoint_hooks_install(void);

#endif							/* PINPOINT_HOOKS_H */
