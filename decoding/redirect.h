/*-------------------------------------------------------------------------
 *
 * redirect.h
 *		Redirects a function of the running program.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_REDIRECT_H
#define PINPOINT_REDIRECT_H

#include <stdbool.h>

typedef enum PinpointRedirectResult
{
	PINPOINT_REDIRECTED,		/* calls of the function execute the
								 * replacement */
	PINPOINT_REFUSED,			/* nothing was changed */
	PINPOINT_BROKEN				/* neither is certain: the program must end */
} PinpointRedirectResult;

/*
 * A function to redirect.
 *
 *	function	name of a function that the program exports
 *	callers		number of direct calls of it in the program's source
 *	replacement	the function to execute instead, of the same type
 *	probe		calls the given function, and returns true if this has
 *				executed the replacement
 */
typedef struct PinpointRedirection
{
	const char *function;
	int			callers;
	void	   *replacement;
	bool		(*probe) (void *function);
} PinpointRedirection;

extern PinpointRedirectResult
			pinpoint_redirect(const PinpointRedirection *redirection,
							  const char **reason);

#endif							/* PINPOINT_REDIRECT_H */
