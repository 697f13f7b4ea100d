package pg

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// SQLSTATEs of errors that the packages of loose foreign keys handle in different ways.
const (
	StateLockNotAvailable = "55P03"
	StateQueryCanceled    = "57014"
	StateDeadlock         = "40P01"
	StateSerialization    = "40001"
	StateUndefinedTable   = "42P01"
	StateNoPrivilege      = "42501"
	StateDivisionByZero   = "22012"
)

// IsState returns whether err comes from PostgreSQL with this SQLSTATE.
func IsState(err error, state string) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == state
}
