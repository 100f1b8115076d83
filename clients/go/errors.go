package pinpoint

import (
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// ErrClosed is the error of Next after Close of the subscription or live query.
var ErrClosed = errors.New("closed")

// ErrClientClosed is the final error after Close of the client, or after the end of its context, whose cause it wraps.
var ErrClientClosed = errors.New("the client is closed")

// ErrNoListen is the final error on a server without pg_pinpoint behind a pooler in transaction mode.
var ErrNoListen = errors.New("LISTEN does not work through this connection, because a pooler gives each transaction" +
	" another session; connect to the server, or to a pool in session mode, or install pg_pinpoint 1.1 or later, or its" +
	" pinpoint.sql, in this database")

// ErrNoWait is the final error with the mode Wait on a server without pg_pinpoint 1.1. It wraps a *pgconn.PgError.
var ErrNoWait error = stateError{"0A000", "waiting needs pg_pinpoint 1.1 or later, or its pinpoint.sql, in this database"}

// ErrNoLive is the error of a live query on a server without pg_pinpoint 1.1. It wraps a *pgconn.PgError.
var ErrNoLive error = stateError{"0A000", "a live query needs pg_pinpoint 1.1 or later, or its pinpoint.sql, in this database"}

// ErrNoUsage is the error of a live query if the role has no privilege for the schema. It wraps a *pgconn.PgError.
var ErrNoUsage error = stateError{"42501",
	"a live query needs a privilege for the schema pinpoint: GRANT USAGE ON SCHEMA pinpoint TO the role of the connection"}

var errOtherServer = errors.New("the connection leads to another server than the one on which the client listens")

// stateError is an error of the package that has a SQLSTATE.
type stateError struct{ code, message string }

func (e stateError) Error() string { return e.message }

func (e stateError) Unwrap() error {
	return &pgconn.PgError{Severity: "ERROR", Code: e.code, Message: e.message}
}

// sqlState returns the SQLSTATE of an error, or "" if it has none.
func sqlState(err error) string {
	var pgError *pgconn.PgError
	if errors.As(err, &pgError) {
		return pgError.Code
	}
	return ""
}

// permanent are the SQLSTATEs of errors that another attempt does not mend: no such role or not admitted, a wrong
// password, no such database, a missing privilege, and what the server cannot do (also the package's own: ErrNoWait). A
// proxy may send any text as a SQLSTATE, or none.
var permanent = []string{"28000", "28P01", "3D000", "42501", "0A000"}

// isPermanent tells errors that another attempt does not mend.
func isPermanent(err error) bool {
	var attempts interface{ Unwrap() []error }
	if errors.As(err, &attempts) { // with several addresses, the last one counts
		all := attempts.Unwrap()
		err = all[len(all)-1]
	}
	var pgError *pgconn.PgError
	if errors.As(err, &pgError) {
		return slices.Contains(permanent, pgError.Code)
	}
	return errors.Is(err, ErrNoListen) || strings.Contains(err.Error(), "x509")
}
