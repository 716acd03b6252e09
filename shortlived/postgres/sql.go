package postgres

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// DefaultTable is the name of the table where none is given.
const DefaultTable = "gatehouse_short_lived"

// maxName is the longest identifier of PostgreSQL in bytes; the server cuts
// longer ones off without an error.
const maxName = 63

// batch is how many expired rows one transaction deletes.
const batch = 500

// statements are the texts for one table.
type statements struct {
	schema, create                                string
	tryAdd, get, take, remove, increment, cleanup string
}

// Liveness is decided by clock_timestamp(), not by now(): an operation may have
// waited for another one that held the row, and now() is the time when it
// began to wait. Only the clean-up uses now(), since an index serves no
// volatile function; a row that it finds late is found the next time.
const (
	// countOf is the count in a value, or NULL: the texts that FormatInt
	// writes, nothing else. encode() makes text of any bytes without an error.
	countOf = `CASE WHEN octet_length(%[1]s.value) BETWEEN 1 AND 20
   AND encode(%[1]s.value, 'escape') ~ '^(0|-?[1-9][0-9]{0,18})$'
  THEN CASE WHEN encode(%[1]s.value, 'escape')::numeric BETWEEN -9223372036854775808 AND 9223372036854775807
   THEN encode(%[1]s.value, 'escape')::bigint END END`

	isFormatA = `(substr(%[1]s.value, 1, 1) = '\x41'::bytea)`

	// replaced tells whether an unreadable value stood there. It sees the row
	// as it was when the statement began, which is near enough for a warning.
	replaced = `EXISTS (SELECT FROM {table} o WHERE o.key = $1::bytea AND o.expires > clock_timestamp()
  AND NOT {o.formatA} AND ({o.count}) IS NULL)`

	expiry = `clock_timestamp() + $3::bigint * interval '1 microsecond'`

	tryAddSQL = `INSERT INTO {table} AS s (key, value, expires) VALUES ($1::bytea, $2::bytea, ` + expiry + `)
ON CONFLICT (key) DO UPDATE SET value = excluded.value, expires = ` + expiry + `
 WHERE s.expires <= clock_timestamp() OR (NOT {s.formatA} AND ({s.count}) IS NULL)
RETURNING ` + replaced

	getSQL = `SELECT value FROM {table} WHERE key = $1::bytea AND expires > clock_timestamp()`

	takeSQL = `DELETE FROM {table} WHERE key = $1::bytea AND expires > clock_timestamp() RETURNING value`

	removeSQL = `DELETE FROM {table} WHERE key = $1::bytea`

	// No row means that a live value is no count. A sum beyond bigint is an
	// error of the server that changes nothing.
	incrementSQL = `INSERT INTO {table} AS s (key, value, expires)
 VALUES ($1::bytea, convert_to(($2::bigint)::text, 'UTF8'), ` + expiry + `)
ON CONFLICT (key) DO UPDATE SET expires = ` + expiry + `,
 value = convert_to((CASE WHEN s.expires > clock_timestamp() THEN coalesce({s.count}, 0) ELSE 0 END + $2::bigint)::text, 'UTF8')
 WHERE s.expires <= clock_timestamp() OR NOT {s.formatA}
RETURNING value, ` + replaced

	// The array makes the inner query run once. It locks what has expired and
	// nobody else holds; the outer condition keeps what was renewed between.
	cleanupSQL = `DELETE FROM {table} WHERE expires <= now() AND key = ANY (ARRAY(
 SELECT key FROM {table} WHERE expires <= now() ORDER BY expires LIMIT {batch} FOR UPDATE SKIP LOCKED))`

	schemaSQL = `CREATE TABLE IF NOT EXISTS {table} (
  key     bytea       PRIMARY KEY,
  value   bytea       NOT NULL,
  expires timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX IF NOT EXISTS {index} ON {table} (expires);
`

	// createLock lets one server at a time create tables: IF NOT EXISTS alone
	// fails when two create at once. It ends with the transaction, as PgBouncer
	// needs it.
	createLock = `SELECT pg_advisory_xact_lock(7020671182310415);
`
)

// Schema returns the SQL that creates the table, for an administrator who gives
// the gateway no right to create it. The name is "table" or "schema.table",
// taken as it is written, capitals included; empty: DefaultTable. The schema
// must exist. The gateway's user needs SELECT, INSERT, UPDATE and DELETE.
func Schema(table string) (string, error) {
	s, err := statementsFor(table)
	return s.schema, err
}

func statementsFor(table string) (statements, error) {
	name, err := splitName(table)
	if err != nil {
		return statements{}, err
	}
	fill := strings.NewReplacer(
		"{table}", name.Sanitize(),
		"{index}", pgx.Identifier{indexName(name[len(name)-1])}.Sanitize(),
		"{batch}", fmt.Sprint(batch),
		"{s.count}", fmt.Sprintf(countOf, "s"), "{o.count}", fmt.Sprintf(countOf, "o"),
		"{s.formatA}", fmt.Sprintf(isFormatA, "s"), "{o.formatA}", fmt.Sprintf(isFormatA, "o"),
	).Replace
	return statements{
		schema: fill(schemaSQL), create: createLock + fill(schemaSQL),
		tryAdd: fill(tryAddSQL), get: fill(getSQL), take: fill(takeSQL), remove: fill(removeSQL),
		increment: fill(incrementSQL), cleanup: fill(cleanupSQL),
	}, nil
}

// splitName reads "table" or "schema.table".
func splitName(table string) (pgx.Identifier, error) {
	if table == "" {
		table = DefaultTable
	}
	parts := strings.Split(table, ".")
	if len(parts) > 2 {
		return nil, fmt.Errorf("shortlived: postgres: the table name %q has more parts than schema and table", table)
	}
	for _, part := range parts {
		if part == "" || len(part) > maxName || !utf8.ValidString(part) || strings.ContainsRune(part, 0) {
			return nil, errors.New("shortlived: postgres: each part of the table name is 1 to 63 bytes of text")
		}
	}
	return parts, nil
}

// indexName is short enough not to be cut off, and another one for each table.
func indexName(table string) string {
	const suffix = "_expires"
	if len(table)+len(suffix) <= maxName {
		return table + suffix
	}
	sum := sha256.Sum256([]byte(table))
	return "gatehouse_" + hex.EncodeToString(sum[:12]) + suffix
}
