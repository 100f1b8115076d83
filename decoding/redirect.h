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
	PINPOINT_REDIRECTED,		/* every call now goes to the replacement */
	PINPOINT_REFUSED,			/* nothing was changed */
	PINPOINT_BROKEN				/* neither: the program must end */
} PinpointRedirectResult;

/*
 * What to redirect
 *
 *	function	name of a function that the program exports
 *	callers		how many direct calls of it there are in the program's source
 *	replacement	the function to call instead, of the same type
 *	probe		calls the function that it is given, and tells if that was the
 *				replacement
 */
typedef struct PinpointRedirection
{
	const char *function;
	int			callers;
	void	   *replacement;
	bool		(*probe) (void *function);
} PinpointRedirection;

extern PinpointRedirectResult pinpoint_redirect(const PinpointRedirection *redirection,
												const char **reason);

#endif							/* PINPOINT_REDIRECT_H */
