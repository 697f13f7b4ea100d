package pgsession

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Setting is a setting of PostgreSQL that a role, a database or the server's configuration may
// impose on Purser's sessions (ALTER ROLE … SET, ALTER DATABASE … SET), and that would change
// what Purser's statements do.
type Setting struct {
	Name string
	// Value is what each of Purser's sessions sets. A limit in [Limits] that isn't 0, and for
	// some settings the DSN, take its place.
	Value string
	// Fine are the values that stay as they are, besides Value. If Fine is nil, each session
	// sets Value; else it does so only if it has found another value.
	Fine []string
	// Refused says that a session can't be used with a value that isn't fine, because only an
	// operator can know which value is right. Then Value isn't set.
	Refused bool
	// Why says what goes wrong with another value.
	Why string
}

// Inherited lists all settings that Purser's sessions don't take from a role, a database or
// the server's configuration. It is the only such list: sessions are set up by it, "purser
// doctor" reports by it, and a test imposes a hostile value of each.
var Inherited = []Setting{
	{Name: "statement_timeout", Value: "0", Why: "statements end before they are done"},
	{Name: "lock_timeout", Value: "0", Why: "requests fail that would only have to wait for another"},
	{Name: "idle_in_transaction_session_timeout", Value: "0", Why: "transactions end between two statements"},
	{Name: "idle_session_timeout", Value: "0", Why: "connections end that wait for notifications"},
	{Name: "transaction_timeout", Value: "0", Why: "transactions end before they are done"},

	{Name: "default_transaction_isolation", Value: "read committed", Why: "statements don't see what was committed before them"},
	{Name: "default_transaction_deferrable", Value: "off", Why: "reads may wait for other transactions"},
	{Name: "default_transaction_read_only", Fine: []string{"off"}, Refused: true, Why: "nothing can be written"},
	{Name: "session_replication_role", Value: "origin", Fine: []string{"local"},
		Why: "no trigger fires: garbage collection doesn't learn what is in use, and foreign keys aren't checked"},
	{Name: "row_security", Value: "off", Why: "rows may be hidden by a policy, and hidden rows would be taken for deleted ones"},
	{Name: "synchronous_commit", Value: "on", Fine: []string{"local", "remote_write", "remote_apply"},
		Why: "a push that was acknowledged may be gone after a crash"},
	{Name: "search_path", Fine: []string{`"$user", public`, `"$user",public`, "public"}, Refused: true,
		Why: "the registry's tables are looked for, and made, in other schemas"},
	{Name: "default_tablespace", Value: "", Why: "partitioned tables can't be made, if it is that of the database, or tables are made where nobody expects them"},
	{Name: "default_table_access_method", Value: "heap", Why: "tables are made whose rows can't be updated, locked or referred to"},
	{Name: "exit_on_error", Value: "off", Why: "each failed statement ends its connection"},
	{Name: "restrict_nonsystem_relation_kind", Value: "", Why: "views can't be read"},

	{Name: "client_encoding", Value: "UTF8", Why: "texts are garbled"},
	{Name: "client_min_messages", Value: "notice", Why: "statements are accompanied by messages that nobody reads"},
	{Name: "standard_conforming_strings", Value: "on", Why: "texts with a backslash have another meaning"},
	{Name: "array_nulls", Value: "on", Why: "NULL in an array is a text"},
	{Name: "transform_null_equals", Value: "off", Why: "comparisons with NULL have another result"},
	{Name: "quote_all_identifiers", Value: "off", Why: "PostgreSQL writes definitions differently"},
	{Name: "datestyle", Value: "ISO, MDY", Why: "dates are written and read differently"},
	{Name: "intervalstyle", Value: "postgres", Why: "periods are written and read differently"},
	{Name: "timezone", Value: "UTC", Why: "days begin at another time"},
	{Name: "bytea_output", Value: "hex", Why: "digests are written differently"},
	{Name: "extra_float_digits", Value: "1", Why: "numbers are rounded"},
	{Name: "xmloption", Value: "content", Why: "documents are read differently"},
	{Name: "plpgsql.extra_errors", Value: "none", Why: "functions of the registry fail"},
	{Name: "check_function_bodies", Value: "on", Why: "wrong functions are noticed late"},

	{Name: "plan_cache_mode", Value: "force_generic_plan", Why: "statements are planned again and again"},
	{Name: "jit", Value: "off", Why: "statements are compiled, which takes longer than they do"},
	{Name: "enable_seqscan", Value: "off", Why: "whole tables are read"},
	{Name: "enable_indexscan", Value: "on", Why: "whole tables are read"},
	{Name: "enable_indexonlyscan", Value: "on", Why: "more is read than needed"},
	{Name: "enable_bitmapscan", Value: "on", Why: "whole tables are read"},
	{Name: "enable_tidscan", Value: "on", Why: "whole tables are read"},
	{Name: "enable_nestloop", Value: "on", Why: "whole tables are read"},
	{Name: "enable_hashjoin", Value: "on", Why: "large joins take too long"},
	{Name: "enable_hashagg", Value: "on", Why: "large counts take too long"},
	{Name: "enable_sort", Value: "on", Why: "large results take too long"},
	{Name: "enable_partition_pruning", Value: "on", Why: "each partition is read for one row"},
}

// fromDSN are the settings of the list for which a DSN may give another value.
var fromDSN = []string{
	"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout", "transaction_timeout",
	"search_path", "default_tablespace", "synchronous_commit", "default_transaction_read_only",
}

// OfDSN returns whether the DSN's value of a setting takes the place of the list's.
func OfDSN(name string) bool { return slices.Contains(fromDSN, strings.ToLower(name)) }

// Inherits returns whether a setting is on the list.
func Inherits(name string) bool {
	return slices.ContainsFunc(Inherited, func(s Setting) bool { return s.Name == strings.ToLower(name) })
}

// fine returns whether a session can have this value of the setting.
func (s Setting) fine(value string) bool {
	return value == s.Value && !s.Refused || slices.Contains(s.Fine, value)
}

// ImposedError says that a session inherits a setting with which Purser can't work, and that
// Purser can't or mustn't change it.
type ImposedError struct {
	Setting Setting
	Value   string
	// By says what imposes the value: the role, the database and so on.
	By string
	// Remedy is what helps.
	Remedy string
}

func (e *ImposedError) Error() string { return e.For("the DSN") }

// For returns the error's text, which calls the setting that contains the DSN `dsn`.
func (e *ImposedError) For(dsn string) string {
	text := fmt.Sprintf("%s imposes %s = %s, so %s: %s", e.By, e.Setting.Name, e.Value, e.Setting.Why, e.Remedy)
	return strings.ReplaceAll(text, "the DSN", dsn)
}

// Own sets up a session of Purser: it sets all of [Inherited], and `settings`, which take
// their place. It returns whether the connection leads directly to PostgreSQL, like [Set], and
// an [ImposedError] if the session can't be used with what it inherits.
func Own(ctx context.Context, conn *pgconn.PgConn, settings map[string]string) (direct bool, err error) {
	all := map[string]string{}
	var looked []string
	for _, s := range Inherited {
		switch _, given := settings[s.Name]; {
		case s.Fine == nil && !given:
			all[s.Name] = s.Value
		case s.Fine != nil && (!given || s.Name != "search_path"):
			looked = append(looked, s.Name)
		}
	}
	for name, value := range settings {
		all[name] = value
	}
	direct, found, err := set(ctx, conn, all, looked)
	if err != nil {
		return direct, err
	}
	for _, s := range Inherited {
		value, ok := found[s.Name]
		if !ok || s.fine(value) {
			continue
		}
		if err := mend(ctx, conn, s, value); err != nil {
			return direct, err
		}
	}
	return direct, nil
}

// roleKey is the key of the session's role in the custom data of a connection.
const roleKey = "role of the session"

// RoleOf returns the role with whose rights the statements of a connection run that [Own] has set up, quoted
// for SQL; "" for another connection. It isn't the DSN's if the role, the database or the DSN sets another one.
func RoleOf(conn *pgconn.PgConn) string {
	role, _ := conn.CustomData()[roleKey].(string)
	return role
}

// set applies settings to a session, and returns the values of the settings in `looked`. It
// leaves out settings that the server doesn't know, unless they have a prefix: those are
// Purser's own. The first statement lifts the session's statement_timeout, which may be too short for the second.
func set(ctx context.Context, conn *pgconn.PgConn, settings map[string]string, looked []string) (direct bool, found map[string]string, err error) {
	list, err := json.Marshal(settings)
	if err != nil {
		return false, nil, err
	}
	names, err := json.Marshal(looked)
	if err != nil {
		return false, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout) // Config.ConnectTimeout covers only the steps before
	defer cancel()
	b := new(pgconn.Batch)
	b.ExecParams("SET statement_timeout = 0", nil, nil, nil, nil)
	b.ExecParams(`
		SELECT pg_catalog.pg_backend_pid(), (
			SELECT pg_catalog.count(pg_catalog.set_config(key, value, false)) FROM pg_catalog.json_each_text($1::json)
			WHERE (pg_catalog.current_setting(key, true) IS NOT NULL OR key LIKE 'purser.%')
				AND (key <> 'client_connection_check_interval' OR pg_catalog.version() !~* 'visual c|msvc|mingw|windows')),
			pg_catalog.quote_ident(current_user::text)`,
		[][]byte{list}, nil, nil, nil)
	b.ExecParams(`
		SELECT pg_catalog.json_object_agg(name, pg_catalog.current_setting(name)) FROM pg_catalog.json_array_elements_text($1::json) name`,
		[][]byte{names}, nil, nil, nil)
	results, err := conn.ExecBatch(ctx, b).ReadAll()
	for _, r := range results {
		err = cmp.Or(err, r.Err)
	}
	if err == nil && (len(results) != 3 || len(results[2].Rows) != 1) {
		err = errors.New("PostgreSQL answered with other results than were asked for")
	}
	if err != nil {
		return false, nil, fmt.Errorf("setting up the session: %w", inTime(err))
	}
	if len(results[1].Rows) == 1 {
		conn.CustomData()[roleKey] = string(results[1].Rows[0][2])
	}
	if value := results[2].Rows[0][0]; value != nil {
		err = json.Unmarshal(value, &found)
	}
	return isOf(conn, results[1]), found, err
}

// inTime adds to an error that a timeout has raised where the timeout comes from: a session
// that isn't set up yet has only inherited ones.
func inTime(err error) error {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || !slices.Contains([]string{"57014", "57P05", "25P03", "25P04", "55P03"}, e.Code) {
		return err
	}
	return fmt.Errorf("%w (statement_timeout, transaction_timeout or idle_session_timeout of the role, the database or the server leave no time even for this: ALTER ROLE … RESET, ALTER DATABASE … RESET)", err)
}

// mend sets a setting that has a value with which Purser can't work. It returns an
// ImposedError if an operator has to do it.
func mend(ctx context.Context, conn *pgconn.PgConn, s Setting, value string) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if !s.Refused {
		err := conn.ExecParams(ctx, "SELECT pg_catalog.set_config($1, $2, false)", [][]byte{[]byte(s.Name), []byte(s.Value)}, nil, nil, nil).Read().Err
		if err == nil {
			return nil
		}
		if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != codeNoPrivilege {
			return fmt.Errorf("setting up the session: %w", err)
		}
	}
	r := conn.ExecParams(ctx, `
		SELECT source, pg_catalog.quote_ident(current_user::text), pg_catalog.quote_ident(pg_catalog.current_database()::text)
		FROM pg_catalog.pg_settings WHERE name = $1`, [][]byte{[]byte(s.Name)}, nil, nil, nil).Read()
	if r.Err != nil || len(r.Rows) != 1 {
		return fmt.Errorf("setting up the session: asking for the source of %s: %w", s.Name, r.Err)
	}
	row := r.Rows[0]
	return imposed(s, value, string(row[0]), string(row[1]), string(row[2]))
}

// imposed describes a value of a setting. `source` is the column of pg_settings; role and
// database are quoted for SQL.
func imposed(s Setting, value, source, role, database string) *ImposedError {
	e := &ImposedError{Setting: s, Value: cmp.Or(value, "''")}
	switch source {
	case "database":
		e.By, e.Remedy = "database "+database, fmt.Sprintf("ALTER DATABASE %s RESET %s", database, s.Name)
	case "user":
		e.By, e.Remedy = "role "+role, fmt.Sprintf("ALTER ROLE %s RESET %s", role, s.Name)
	case "database user":
		e.By, e.Remedy = "role "+role, fmt.Sprintf("ALTER ROLE %s IN DATABASE %s RESET %s", role, database, s.Name)
	case "global":
		e.By, e.Remedy = "the server", "ALTER ROLE ALL RESET "+s.Name
	case "session", "client":
		e.By, e.Remedy = "the DSN", "take "+s.Name+" out of it"
	default:
		e.By, e.Remedy = "PostgreSQL's configuration", "take "+s.Name+" out of it, or correct it there"
	}
	switch s.Name {
	case "search_path":
		if e.By != "the DSN" {
			e.Remedy = "if the registry's tables are to be there, put search_path into the DSN, else " + e.Remedy
		}
	case "default_transaction_read_only":
		if strings.HasPrefix(e.Remedy, "ALTER") { // the setting holds for the session that runs the remedy, too
			e.Remedy = "BEGIN READ WRITE; " + e.Remedy + "; COMMIT"
		}
	}
	return e
}

// Imposed connects to PostgreSQL and returns those of [Inherited] on which the role or the
// database imposes another value than Purser's, and each that makes Purser refuse. It changes nothing of the session.
func Imposed(ctx context.Context, dsn string) (list []*ImposedError, err error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	Dialing(&cfg.Config)
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is pending
	for _, s := range Inherited {
		if _, given := cfg.RuntimeParams[s.Name]; given && OfDSN(s.Name) && !s.Refused {
			continue
		}
		var value, source, role, database string
		err := conn.QueryRow(ctx, `
			SELECT setting, source, pg_catalog.quote_ident(current_user::text), pg_catalog.quote_ident(pg_catalog.current_database()::text)
			FROM pg_catalog.pg_settings WHERE lower(name) = $1`, s.Name).Scan(&value, &source, &role, &database)
		if errors.Is(err, pgx.ErrNoRows) { // a server of another version
			continue
		}
		if err != nil {
			return nil, err
		}
		byRole := slices.Contains([]string{"database", "user", "database user", "global"}, source)
		if !s.fine(value) && (byRole || s.Fine != nil) && !(s.Name == "search_path" && source == "client") {
			list = append(list, imposed(s, value, source, role, database))
		}
	}
	return list, nil
}
