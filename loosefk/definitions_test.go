package loosefk

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/loosefk/internal/testdb"
)

func TestParse(t *testing.T) {
	t.Parallel()
	defs := parse(t, testdb.ProjectsDefinitions)
	four, npm := "4", "npm"
	want := Definitions{
		{Child: "pipelines", Parent: "projects", Column: "project_id", OnDelete: AsyncDelete, File: "loose.yml", Line: 3},
		{Child: "requests", Parent: "projects", Column: "project_id", OnDelete: AsyncNullify, File: "loose.yml", Line: 7},
		{
			Child: "packages", Parent: "projects", Column: "project_id", OnDelete: UpdateColumnTo, File: "loose.yml", Line: 11,
			TargetColumn: "status", TargetValue: &four, Conditions: []Condition{{"kind", []*string{&npm}}},
		},
	}
	if fmt.Sprintf("%+v", flat(defs)) != fmt.Sprintf("%+v", flat(want)) {
		t.Errorf("%+v, want %+v", flat(defs), flat(want))
	}
}

// flat returns definitions as texts without pointers, so that tests can compare them.
func flat(defs Definitions) (list []string) {
	for _, d := range defs {
		value := "-"
		if d.TargetValue != nil {
			value = *d.TargetValue
		}
		list = append(list, fmt.Sprint(d.Child, d.Parent, d.Column, d.OnDelete, d.TargetColumn, value, conditionKey(d), d.DeleteLimit, d.File, d.Line))
	}
	return list
}

func TestParseProblems(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"- x":       {"f.yml:1: want a mapping"},
		"a: [":      {"f.yml: line 1"},
		"a: 1":      {"f.yml:1: table a: want a list"},
		"a: []":     {"f.yml:1: table a: want a list"},
		"a: [x]":    {"f.yml:1: table a: want table, column"},
		"a b: [{}]": {`f.yml:1: "a b" is no table's name`},
		"a: [{}]":   {"parent's name is missing", "column that refers", "on_delete is missing"},
		"a:\n  - table: p\n    column: c\n    on_delete: cascade":                                                     {`f.yml:2: table a: on_delete is "cascade": want async_delete`},
		"a: [{table: p, column: c, on_delete: async_delete, colour: red}]":                                            {`unknown key "colour"`},
		"a: [{table: p, column: c, on_delete: async_delete, target_column: x}]":                                       {"belong to on_delete: update_column_to only"},
		"a: [{table: p, column: c, on_delete: update_column_to, target_column: x}]":                                   {"needs target_column and target_value"},
		"a: [{table: p, column: c, on_delete: async_delete, delete_limit: 0}]":                                        {"delete_limit is \"0\""},
		"a: [{table: p, column: c, on_delete: async_delete, conditions: [{value: 1}]}]":                               {"conditions: want {column"},
		"a:\n  - {table: p, column: c, on_delete: async_delete}\n  - {table: p, column: c, on_delete: async_nullify}": {"f.yml:3: table a: column c and table p are defined at line 2 already"},
		"a: [{table: p, column: c, on_delete: async_delete}]\na: [{table: q, column: c, on_delete: async_delete}]":    {"a second time"},
	} {
		_, err := Parse("f.yml", strings.NewReader(text))
		var problems Problems
		if !errors.As(err, &problems) {
			t.Errorf("%q: %v", text, err)
			continue
		}
		for _, w := range want {
			if !slices.ContainsFunc(problems, func(p Problem) bool { return strings.Contains(p.Error(), w) }) {
				t.Errorf("%q: %v, want %q", text, err, w)
			}
		}
	}
	if defs, err := Parse("empty.yml", strings.NewReader("# nothing\n")); err != nil || len(defs) != 0 {
		t.Errorf("an empty file: %v, %v", defs, err)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	pool := newPool(t, `
		CREATE TABLE projects (id bigint PRIMARY KEY, parent bigint);
		CREATE TABLE named (id text PRIMARY KEY);
		CREATE TABLE paired (id bigint, other bigint, PRIMARY KEY (id, other));
		CREATE TABLE builds (id bigserial PRIMARY KEY, project_id bigint NOT NULL, name text, plain bigint, half bigint, sparse bigint);
		CREATE INDEX ON builds (project_id);
		CREATE INDEX ON builds (name);
		CREATE INDEX ON builds (half) WHERE id > 5;
		CREATE INDEX ON builds (sparse) WHERE sparse IS NOT NULL;
		CREATE INDEX ON projects (parent)`)
	dbs := Databases{{Name: "main", Pool: pool}}
	for text, want := range map[string]string{
		oneDefinition: "",
		"builds: [{table: projects, column: sparse, on_delete: async_delete}]":                                     "",
		"builds: [{table: projects, column: plain, on_delete: async_delete}]":                                      "l.yml:1: column plain of public.builds has no index that begins with it",
		"builds: [{table: projects, column: half, on_delete: async_delete}]":                                       "column half of public.builds has no index",
		"builds: [{table: projects, column: name, on_delete: async_delete}]":                                       "column name of public.builds is text",
		"builds: [{table: projects, column: project_id, on_delete: async_nullify}]":                                "is NOT NULL: async_nullify",
		"builds: [{table: named, column: project_id, on_delete: async_delete}]":                                    "it can't hold the key id of public.named, which is text",
		"builds: [{table: paired, column: project_id, on_delete: async_delete}]":                                   "table public.paired has no key that deleted records can hold",
		"public.builds: [{table: public.projects, column: project_id, on_delete: async_delete}]\n" + oneDefinition: "defined at line 1 already",
		"projects: [{table: projects, column: parent, on_delete: async_delete}]":                                   "",
		oneDefinition + "\nprojects: [{table: builds, column: parent, on_delete: async_delete}]":                   "",
		oneDefinition + "\nprojects: [{table: builds, column: parent, on_delete: async_nullify}]":                  "",
	} {
		defs, err := Parse("l.yml", strings.NewReader(text))
		must(t, err)
		err = Validate(t.Context(), dbs, defs)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
