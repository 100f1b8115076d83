/*-------------------------------------------------------------------------
 *
 * compat.h
 *		Differences between versions of PostgreSQL.
 *
 * relfilenumbermap.c uses the names of PostgreSQL 16 and later.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_DECODING_COMPAT_H
#define PINPOINT_DECODING_COMPAT_H

#if PG_VERSION_NUM < 150000 || PG_VERSION_NUM >= 200000
#error "pg_pinpoint_decoding supports PostgreSQL 15 to 19"
#endif

/* Before 18, other headers include these. */
#include "access/htup_details.h"
#include "utils/relmapper.h"
#include "utils/tuplestore.h"
#include "utils/wait_event.h"

#if PG_VERSION_NUM >= 160000
#include "utils/relfilenumbermap.h"
#else
#include "utils/relfilenodemap.h"
#endif

#if PG_VERSION_NUM >= 170000
#include "storage/procnumber.h"
#else
#include "storage/backendid.h"
#endif

/*
 * A file number of a relation.  PostgreSQL 16 gave it a type, and the name
 * that is also in the error for a duplicate.
 */
#if PG_VERSION_NUM >= 160000
#define PINPOINT_SERVER_FUNCTION	"RelidByRelfilenumber"
#define PINPOINT_FILE_NUMBER		"relfilenumber"
#else
#define PINPOINT_SERVER_FUNCTION	"RelidByRelfilenode"
#define PINPOINT_FILE_NUMBER		"relfilenode"
#define RelidByRelfilenumber		RelidByRelfilenode
#define RelationMapFilenumberToOid	RelationMapFilenodeToOid
typedef Oid RelFileNumber;
#endif

/*
 * In the library, our function must not have the name of the server's
 * function.  The minor release is that of the running server, not that of the
 * headers.
 */
#ifdef PINPOINT_LIVE
#undef RelidByRelfilenumber
#define RelidByRelfilenumber		pinpoint_relfilenumbermap_relid
extern Oid	RelidByRelfilenumber(Oid reltablespace,
								 RelFileNumber relfilenumber);
extern int	pinpoint_decoding_server_version;
#define PINPOINT_SERVER_VERSION		pinpoint_decoding_server_version
#else
#define PINPOINT_SERVER_VERSION		PG_VERSION_NUM
#endif

/*
 * Does a server of this version ignore temporary relations?  Before these
 * minor releases, it found them like others, and a temporary relation with the
 * number of a permanent one was a "duplicate".
 */
static inline bool
pinpoint_ignores_temporary(int version)
{
	switch (version / 10000)
	{
		case 15:
			return version >= 150015;
		case 16:
			return version >= 160011;
		case 17:
			return version >= 170007;
		default:
			return true;
	}
}

/* Wait event of the library's background worker, for pg_stat_activity */
static inline uint32
pinpoint_wait_event(void)
{
#if PG_VERSION_NUM >= 170000
	static uint32 event = 0;

	if (event == 0)
		event = WaitEventExtensionNew("PinpointStandbySnapshot");
	return event;
#else
	return PG_WAIT_EXTENSION;
#endif
}

/* Index of this session in arrays of MaxBackends elements; -1 if none */
#if PG_VERSION_NUM >= 170000
#define PINPOINT_MY_SLOT_NUMBER		((int) MyProcNumber)
#else
#define PINPOINT_MY_SLOT_NUMBER \
	(MyBackendId == InvalidBackendId ? -1 : MyBackendId - 1)
#endif

/* The library's name and version, for pg_get_loaded_modules(). */
#if PG_VERSION_NUM >= 180000
#define PINPOINT_MODULE_MAGIC(module) \
	PG_MODULE_MAGIC_EXT(.name = (module), .version = PINPOINT_VERSION)
#else
#define PINPOINT_MODULE_MAGIC(module)	PG_MODULE_MAGIC
#endif

#endif							/* PINPOINT_DECODING_COMPAT_H */
