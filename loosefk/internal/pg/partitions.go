package pg

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Partition is an attached partition of the table of deleted records.
type Partition struct {
	Table   string // with its schema
	Value   int64  // the largest number in its bound; 0 for the default partition
	Default bool   // takes records that fit no other
	Values  []int64
}

// Partitions lists the attached partitions of the table of deleted records by value, the
// default partition last. `current` is the default value of the column `partition`. It is 0
// if the column has no default, or a default that is no number.
func (d Database) Partitions(ctx context.Context, db DB) (list []Partition, current int64, err error) {
	rows, err := db.Query(ctx, `
		SELECT n.nspname, c.relname, pg_get_expr(c.relpartbound, c.oid)
		FROM pg_inherits i
		JOIN pg_class c ON c.oid = i.inhrelid
		JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE i.inhparent = $1::regclass`, d.Records())
	if err != nil {
		return nil, 0, err
	}
	var schema, table, bound string
	if _, err = pgx.ForEachRow(rows, []any{&schema, &table, &bound}, func() error {
		p := Partition{Table: Table{schema, table}.String(), Default: bound == "DEFAULT"}
		if !p.Default {
			if p.Values, err = boundValues(bound); err != nil {
				return fmt.Errorf("partition %s is %s: want FOR VALUES IN (number)", p.Table, bound)
			}
			p.Value = slices.Max(p.Values)
		}
		list = append(list, p)
		return nil
	}); err != nil {
		return nil, 0, err
	}
	slices.SortFunc(list, func(a, b Partition) int {
		switch {
		case a.Default != b.Default && a.Default:
			return 1
		case a.Default != b.Default:
			return -1
		}
		return int(max(min(a.Value-b.Value, 1), -1))
	})
	var expr *string
	err = db.QueryRow(ctx, `
		SELECT pg_get_expr(d.adbin, d.adrelid)
		FROM pg_attribute a
		LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
		WHERE a.attrelid = $1::regclass AND a.attname = 'partition'`, d.Records()).Scan(&expr)
	if err != nil || expr == nil {
		return list, 0, err
	}
	current, err = strconv.ParseInt(strings.Trim(strings.TrimSuffix(*expr, "::bigint"), "'()"), 10, 64)
	if err != nil {
		current = 0 // not a number: as wrong as no default
	}
	return list, current, nil
}

// boundValues returns the numbers in a partition's bound, which PostgreSQL writes as
// "FOR VALUES IN ('1', '2')".
func boundValues(bound string) (values []int64, err error) {
	list, ok := strings.CutPrefix(bound, "FOR VALUES IN (")
	if !ok {
		return nil, errors.New("it is no list")
	}
	for text := range strings.SplitSeq(strings.TrimSuffix(list, ")"), ", ") {
		if text == "NULL" { // no record has it
			text = "0"
		}
		value, err := strconv.ParseInt(strings.Trim(text, "'"), 10, 64)
		if err != nil {
			return nil, err
		}
		values = append(values, value)
	}
	return values, nil
}

// Newest returns the partition with the highest value.
func Newest(list []Partition) (Partition, error) {
	for _, p := range slices.Backward(list) {
		if !p.Default {
			return p, nil
		}
	}
	return Partition{}, fmt.Errorf("there is no partition besides the default one: run the installation again")
}

// Exists returns whether a partition takes a value.
func Exists(list []Partition, value int64) bool {
	return slices.ContainsFunc(list, func(p Partition) bool { return slices.Contains(p.Values, value) })
}
