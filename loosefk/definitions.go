package loosefk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// Action says what happens to a child when its parent is deleted.
type Action string

// The actions, as definitions name them.
const (
	AsyncDelete    Action = "async_delete"     // the child is deleted
	AsyncNullify   Action = "async_nullify"    // its reference becomes NULL
	UpdateColumnTo Action = "update_column_to" // another column gets a value
)

// Definition is one loose foreign key.
type Definition struct {
	Child    string // table, "name" or "schema.name"
	Parent   string // table, likewise
	Column   string // of the child; it contains the parent's key
	OnDelete Action
	// TargetColumn and TargetValue are the column that UpdateColumnTo sets, and its new
	// value in PostgreSQL's text form; nil is NULL. Other actions have no target.
	TargetColumn string
	TargetValue  *string
	// Conditions restrict the children to those that meet all conditions.
	Conditions []Condition
	// DeleteLimit is how many rows one query may delete or update for this definition,
	// instead of Options.DeleteLimit and Options.UpdateLimit. 0: the limits of Options
	// apply.
	DeleteLimit int
	File        string // the file that contains the definition, or ""
	Line        int
}

// Condition is met by the child rows whose column has one of the values.
type Condition struct {
	Column string
	// Values are in PostgreSQL's text form; nil is NULL.
	Values []*string
}

// String returns the definition in one line, with its file and line.
func (d Definition) String() string {
	s := fmt.Sprintf("%s.%s → %s (%s)", d.Child, d.Column, d.Parent, d.OnDelete)
	if d.File != "" {
		s += fmt.Sprintf(", %s:%d", d.File, d.Line)
	}
	return s
}

// Same returns whether two definitions apply to the same children of the same parent:
// whether child, column, parent and conditions are equal.
func (d Definition) Same(other Definition) bool {
	return d.Child == other.Child && d.Column == other.Column && d.Parent == other.Parent && conditionKey(d) == conditionKey(other)
}

// Definitions are loose foreign keys in the order in which the worker cleans up the
// children of a parent.
type Definitions []Definition

// Parents returns the distinct parent tables, in the order of their first definition.
func (ds Definitions) Parents() []string {
	var list []string
	for _, d := range ds {
		if !slices.Contains(list, d.Parent) {
			list = append(list, d.Parent)
		}
	}
	return list
}

// Of returns the definitions of a parent table, in order.
func (ds Definitions) Of(parent string) Definitions {
	return slices.DeleteFunc(slices.Clone(ds), func(d Definition) bool { return d.Parent != parent })
}

// check returns an error that lists mistakes in definitions that a program has built as Go
// values. For definitions in a file, Parse reports the same mistakes.
func (ds Definitions) check() error {
	var problems Problems
	for _, d := range ds {
		switch {
		case d.Child == "" || d.Parent == "":
			problems = append(problems, d.problem("%s: want the names of a child and a parent table", d))
		case d.Column == "":
			problems = append(problems, d.problem("%s: the column that refers to the parent is missing", d))
		case d.OnDelete != AsyncDelete && d.OnDelete != AsyncNullify && d.OnDelete != UpdateColumnTo:
			problems = append(problems, d.problem("%s: want %s, %s or %s", d, AsyncDelete, AsyncNullify, UpdateColumnTo))
		case d.OnDelete == UpdateColumnTo && d.TargetColumn == "":
			problems = append(problems, d.problem("%s: the target column is missing", d))
		case d.DeleteLimit < 0 || d.DeleteLimit > 1_000_000:
			problems = append(problems, d.problem("%s: the delete limit is %d: want rows per query, up to 1000000", d, d.DeleteLimit))
		}
	}
	return problems.or()
}

// Problem describes a mistake at a place in a file of definitions.
type Problem struct {
	File string
	Line int // from 1; 0 if the mistake has no line
	Text string
}

// Error returns "file:line: text".
func (p Problem) Error() string {
	switch {
	case p.File == "":
		return p.Text
	case p.Line == 0:
		return p.File + ": " + p.Text
	}
	return fmt.Sprintf("%s:%d: %s", p.File, p.Line, p.Text)
}

// Problems is an error that lists all mistakes found in definitions, one per line of its
// message. Callers find it with errors.As.
type Problems []Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// or returns `ps` as an error, or nil if `ps` is empty.
func (ps Problems) or() error {
	if len(ps) == 0 {
		return nil
	}
	return ps
}

// Load reads a YAML file of definitions: a mapping from child tables to lists of
// their loose foreign keys.
//
//	ci_pipelines:
//	  - table: projects
//	    column: project_id
//	    on_delete: async_delete
//	packages:
//	  - table: projects
//	    column: project_id
//	    on_delete: update_column_to
//	    target_column: status
//	    target_value: 4
//	    conditions: [{column: kind, value: npm}]
//	    delete_limit: 200
//
// If the file has mistakes, Load returns Problems, which lists them. If the file can't be
// opened, Load returns the error of opening it.
func Load(name string) (Definitions, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("reading loose foreign keys: %w", err)
	}
	defer f.Close()
	return Parse(name, f)
}

// Parse is like Load, but reads the YAML text from r. Its errors contain `name` as the
// file's name.
func Parse(name string, r io.Reader) (Definitions, error) {
	var doc yaml.Node
	err := yaml.NewDecoder(r).Decode(&doc)
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	if err != nil {
		return nil, Problems{{File: name, Text: strings.TrimPrefix(err.Error(), "yaml: ")}}
	}
	p := &parser{file: name}
	root := resolve(doc.Content[0])
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil
	}
	if root.Kind != yaml.MappingNode {
		p.fail(root, "want a mapping from child tables to lists of loose foreign keys")
		return nil, p.problems
	}
	seen := map[string]bool{}
	for i := 0; i < len(root.Content); i += 2 {
		key, list := root.Content[i], resolve(root.Content[i+1])
		if seen[key.Value] {
			p.fail(key, "table %s stands here a second time: put all its loose foreign keys in one list", key.Value)
			continue
		}
		seen[key.Value] = true
		p.child(key, list)
	}
	p.duplicates()
	if len(p.problems) > 0 {
		return nil, p.problems
	}
	return p.list, nil
}

type parser struct {
	file     string
	list     Definitions
	problems Problems
}

func (p *parser) fail(n *yaml.Node, format string, args ...any) {
	p.problems = append(p.problems, Problem{p.file, n.Line, fmt.Sprintf(format, args...)})
}

// resolve follows an alias to its anchor.
func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

func (p *parser) child(key, list *yaml.Node) {
	if !pg.IsTable(key.Value) {
		p.fail(key, "%q is no table's name: want name or schema.name", key.Value)
		return
	}
	if list.Kind != yaml.SequenceNode || len(list.Content) == 0 {
		p.fail(key, "table %s: want a list of loose foreign keys, each with table, column and on_delete", key.Value)
		return
	}
	for _, n := range list.Content {
		p.definition(key.Value, resolve(n))
	}
}

func (p *parser) definition(child string, n *yaml.Node) {
	if n.Kind != yaml.MappingNode {
		p.fail(n, "table %s: want table, column and on_delete", child)
		return
	}
	before := len(p.problems)
	d := Definition{Child: child, File: p.file, Line: n.Line}
	hasValue := false
	seen := map[string]bool{}
	for i := 0; i < len(n.Content); i += 2 {
		key, value := n.Content[i], resolve(n.Content[i+1])
		if seen[key.Value] {
			p.fail(key, "table %s: %s is given twice", child, key.Value)
		}
		seen[key.Value] = true
		switch key.Value {
		case "table":
			d.Parent = p.text(key, value)
		case "column":
			d.Column = p.text(key, value)
		case "on_delete":
			// Some files write the action as a Ruby symbol, with a colon in front.
			d.OnDelete = Action(strings.TrimPrefix(p.text(key, value), ":"))
		case "target_column":
			d.TargetColumn = p.text(key, value)
		case "target_value":
			d.TargetValue, hasValue = p.value(key, value), true
		case "conditions":
			d.Conditions = p.conditions(key, value)
		case "delete_limit":
			if err := value.Decode(&d.DeleteLimit); err != nil || d.DeleteLimit <= 0 || d.DeleteLimit > 1_000_000 {
				p.fail(key, "delete_limit is %q: want rows per query, from 1 to 1000000", value.Value)
			}
		default:
			p.fail(key, "table %s: unknown key %q: there are table, column, on_delete, target_column, target_value, conditions and delete_limit", child, key.Value)
		}
	}
	if len(p.problems) > before {
		return
	}
	p.check(n, d, hasValue)
	if len(p.problems) == before {
		p.list = append(p.list, d)
	}
}

// check reports what a definition in the file lacks, and keys that its on_delete doesn't
// allow. `hasValue` says whether the definition has the key target_value.
func (p *parser) check(n *yaml.Node, d Definition, hasValue bool) {
	switch {
	case d.Parent == "":
		p.fail(n, "table %s: the parent's name is missing: give table", d.Child)
	case !pg.IsTable(d.Parent):
		p.fail(n, "table %s: %q is no table's name: want name or schema.name", d.Child, d.Parent)
	}
	if d.Column == "" {
		p.fail(n, "table %s: the column that refers to %s is missing: give column", d.Child, d.Parent)
	}
	switch d.OnDelete {
	case AsyncDelete, AsyncNullify:
		if d.TargetColumn != "" || hasValue {
			p.fail(n, "table %s: target_column and target_value belong to on_delete: update_column_to only", d.Child)
		}
	case UpdateColumnTo:
		if d.TargetColumn == "" || !hasValue {
			p.fail(n, "table %s: update_column_to needs target_column and target_value", d.Child)
		}
	case "":
		p.fail(n, "table %s: on_delete is missing: want async_delete, async_nullify or update_column_to", d.Child)
	default:
		p.fail(n, "table %s: on_delete is %q: want async_delete, async_nullify or update_column_to", d.Child, d.OnDelete)
	}
}

func (p *parser) text(key, value *yaml.Node) string {
	if value.Kind != yaml.ScalarNode || value.Tag == "!!null" || value.Value == "" {
		p.fail(key, "%s: want a text", key.Value)
		return ""
	}
	return value.Value
}

func (p *parser) value(key, value *yaml.Node) *string {
	if value.Kind != yaml.ScalarNode {
		p.fail(key, "%s: want a single value", key.Value)
		return nil
	}
	if value.Tag == "!!null" {
		return nil
	}
	return &value.Value
}

func (p *parser) conditions(key, list *yaml.Node) []Condition {
	if list.Kind != yaml.SequenceNode {
		p.fail(key, "conditions: want a list of {column, value}")
		return nil
	}
	var conditions []Condition
	for _, n := range list.Content {
		n = resolve(n)
		var c Condition
		ok := n.Kind == yaml.MappingNode
		for i := 0; ok && i < len(n.Content); i += 2 {
			value := resolve(n.Content[i+1])
			switch n.Content[i].Value {
			case "column":
				c.Column = p.text(n.Content[i], value)
			case "value":
				values := []*yaml.Node{value}
				if value.Kind == yaml.SequenceNode {
					values = value.Content
				}
				for _, v := range values {
					c.Values = append(c.Values, p.value(n.Content[i], resolve(v)))
				}
			default:
				ok = false
			}
		}
		if !ok || c.Column == "" || len(c.Values) == 0 {
			p.fail(n, "conditions: want {column: name, value: one or a list}")
			continue
		}
		conditions = append(conditions, c)
	}
	return conditions
}

// duplicates reports definitions whose child, column, parent and conditions equal those of
// an earlier definition in the file.
func (p *parser) duplicates() {
	first := map[string]Definition{}
	for _, d := range p.list {
		key := fmt.Sprintf("%s\x00%s\x00%s\x00%s", d.Child, d.Column, d.Parent, conditionKey(d))
		if other, ok := first[key]; ok {
			p.problems = append(p.problems, Problem{p.file, d.Line, fmt.Sprintf(
				"table %s: column %s and table %s are defined at line %d already", d.Child, d.Column, d.Parent, other.Line)})
			continue
		}
		first[key] = d
	}
}

func conditionKey(d Definition) string {
	var b strings.Builder
	for _, c := range d.Conditions {
		b.WriteString(c.Column)
		for _, v := range c.Values {
			if v == nil {
				b.WriteString("\x01")
				continue
			}
			b.WriteString("=" + *v)
		}
	}
	return b.String()
}
