package generate

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/purser-registry/purser/loosefk"
)

// definitionsText is the text of a YAML file of definitions. It is edited by inserting and
// deleting lines, so that the other lines keep their comments, order and spacing.
type definitionsText struct {
	name     string
	lines    []string
	newline  string
	children []childText
	flow     bool // the whole mapping is written in braces
	root     int  // the mapping's first line, counted from 0; -1 when there is no mapping
}

// childText is the part of the text for one child table: the lines from number `key` up to
// but not including `end`, counted from 0, and the parsed list of definitions.
type childText struct {
	table    string
	key, end int
	list     *yaml.Node
}

func parseText(name string, text []byte) (*definitionsText, error) {
	t := &definitionsText{name: name, newline: "\n", root: -1}
	if bytes.Contains(text, []byte("\r\n")) {
		t.newline = "\r\n"
	}
	if s := strings.TrimSuffix(string(text), t.newline); s != "" {
		t.lines = strings.Split(s, t.newline)
	}
	var doc yaml.Node
	err := yaml.NewDecoder(bytes.NewReader(text)).Decode(&doc)
	if errors.Is(err, io.EOF) {
		return t, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return t, nil // the document is null: Parse refuses everything else
	}
	t.root, t.flow = root.Line-1, root.Style&yaml.FlowStyle != 0
	for i := 0; i < len(root.Content); i += 2 {
		t.children = append(t.children, childText{table: root.Content[i].Value, key: root.Content[i].Line - 1, list: root.Content[i+1]})
	}
	for i := range t.children {
		next := t.documentEnd()
		if i+1 < len(t.children) {
			next = t.children[i+1].key
		}
		t.children[i].end = t.trim(t.children[i].key+1, next)
	}
	return t, nil
}

// documentEnd returns the number of the line after the last line of the first YAML
// document.
func (t *definitionsText) documentEnd() int {
	for i := max(t.root, 0); i < len(t.lines); i++ {
		if l := t.lines[i]; i > t.root && (l == "..." || l == "---" || strings.HasPrefix(l, "--- ")) {
			return i
		}
	}
	return len(t.lines)
}

// trim moves the end `to` of the lines [from, to) up over empty lines and unindented
// comments, because these belong to the next child table, and returns the new end.
func (t *definitionsText) trim(from, to int) int {
	for to > from && (blank(t.lines[to-1]) || strings.HasPrefix(t.lines[to-1], "#")) {
		to--
	}
	return to
}

func blank(line string) bool { return strings.TrimSpace(line) == "" }

func isComment(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), "#") }

// comments returns the number of the first of the comment lines directly above a line, or
// the line's own number if there are none.
func (t *definitionsText) comments(line int) int {
	for line > 0 && isComment(t.lines[line-1]) {
		line--
	}
	return line
}

func (t *definitionsText) bytes() []byte {
	if len(t.lines) == 0 {
		return nil
	}
	return []byte(strings.Join(t.lines, t.newline) + t.newline)
}

// scalar returns a name as YAML, in quotes if YAML requires them.
func scalar(s string) string {
	text, err := yaml.Marshal(s)
	if err != nil {
		return fmt.Sprintf("%q", s)
	}
	return strings.TrimSpace(string(text))
}

// entry returns the YAML lines of a definition as an item of a list. `dash` is the column
// of the item's dash, counted from 0; `step` is the number of columns from the dash to the
// text.
func entry(d loosefk.Definition, dash, step int) []string {
	first := strings.Repeat(" ", dash) + "-" + strings.Repeat(" ", max(step, 2)-1)
	rest := strings.Repeat(" ", dash+max(step, 2))
	return []string{first + "table: " + scalar(d.Parent), rest + "column: " + scalar(d.Column), rest + "on_delete: " + string(d.OnDelete)}
}

// addDefinition adds a definition to the text, at the end of its child table's list. If the
// child table has no list, it adds one: in alphabetical order if the file's tables are
// sorted, else at the end.
func addDefinition(name string, text []byte, d loosefk.Definition) ([]byte, error) {
	t, err := parseText(name, text)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(t.children, func(c childText) bool { return c.table == d.Child }); i >= 0 {
		c := t.children[i]
		if c.list.Kind != yaml.SequenceNode || c.list.Style&yaml.FlowStyle != 0 || len(c.list.Content) == 0 {
			return nil, fmt.Errorf("%s:%d: the definitions of %s are not a list with a line for each dash: write them so, or add this by hand:\n%s",
				name, c.key+1, d.Child, strings.Join(entry(d, 2, 2), "\n"))
		}
		dash := c.list.Column - 1
		t.lines = slices.Insert(t.lines, c.end, entry(d, dash, c.list.Content[0].Column-1-dash)...)
		return t.bytes(), nil
	}
	if t.flow {
		if len(t.children) > 0 || strings.TrimSpace(t.lines[t.root]) != "{}" {
			return nil, fmt.Errorf("%s:%d: the definitions are written in braces: write each table on a line of its own, then run this again", name, t.root+1)
		}
		t.lines = slices.Delete(t.lines, t.root, t.root+1)
		t.root = -1
	}
	block := append([]string{scalar(d.Child) + ":"}, entry(d, 2, 2)...)
	at, before := t.place(d.Child)
	if t.spaced() {
		if before {
			block = append(block, "")
		} else {
			block = append([]string{""}, block...)
		}
	}
	t.lines = slices.Insert(t.lines, at, block...)
	return t.bytes(), nil
}

// place returns the number of the line before which to insert a new child table. `before` is
// true if the new table is to come before the first child table of the file.
func (t *definitionsText) place(table string) (line int, before bool) {
	if len(t.children) == 0 {
		return t.documentEnd(), false
	}
	sorted := len(t.children) > 1 && slices.IsSortedFunc(t.children, func(a, b childText) int { return cmp.Compare(a.table, b.table) })
	if sorted {
		for i, c := range t.children {
			if table < c.table && i > 0 {
				return t.children[i-1].end, false
			}
			if table < c.table {
				if first := t.comments(c.key); first > 0 && blank(t.lines[first-1]) {
					return first, true
				}
				return c.key, true // the comments at the top belong to the whole file
			}
		}
	}
	return t.children[len(t.children)-1].end, false
}

// spaced returns whether empty lines separate the child tables.
func (t *definitionsText) spaced() bool {
	if len(t.children) < 2 {
		return false
	}
	return blank(t.lines[t.comments(t.children[1].key)-1])
}

// removeDefinition removes a definition from the text, with the comments directly above it.
// If it is the last definition of a child table, removeDefinition removes the table's key
// too.
func removeDefinition(name string, text []byte, d loosefk.Definition) ([]byte, error) {
	defs, err := loosefk.Parse(name, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(defs, d.Same)
	t, err := parseText(name, text)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(t.children, func(c childText) bool { return c.table == d.Child })
	if at < 0 || i < 0 {
		return nil, fmt.Errorf("%s: there is no definition %s", name, d)
	}
	c := t.children[i]
	from, to := 0, c.end
	if len(c.list.Content) > 1 {
		k := slices.IndexFunc(c.list.Content, func(n *yaml.Node) bool { return n.Line == defs[at].Line })
		if k < 0 || c.list.Style&yaml.FlowStyle != 0 {
			return nil, fmt.Errorf("%s:%d: the definition %s is not an item of its own: remove it by hand", name, defs[at].Line, d)
		}
		from = t.comments(c.list.Content[k].Line - 1)
		if k+1 < len(c.list.Content) {
			to = t.comments(c.list.Content[k+1].Line - 1)
		}
	} else if from = t.comments(c.key); from == 0 {
		from = c.key // the comments at the top belong to the whole file
	}
	t.lines = slices.Delete(t.lines, from, to)
	if from > 0 && blank(t.lines[from-1]) && (from == len(t.lines) || blank(t.lines[from])) {
		t.lines = slices.Delete(t.lines, from-1, from)
	}
	return t.bytes(), nil
}

// editDefinitions returns the text after adding and removing definitions, and the
// definitions in it. It parses the new text, and returns an error unless it contains
// exactly the expected definitions.
func editDefinitions(name string, text []byte, add, remove loosefk.Definitions) ([]byte, loosefk.Definitions, error) {
	before, err := loosefk.Parse(name, bytes.NewReader(text))
	if err != nil {
		return nil, nil, err
	}
	want := slices.DeleteFunc(append(slices.Clone(before), add...), func(d loosefk.Definition) bool {
		return slices.ContainsFunc(remove, d.Same)
	})
	for _, d := range add {
		if text, err = addDefinition(name, text, d); err != nil {
			return nil, nil, err
		}
	}
	for _, d := range remove {
		if text, err = removeDefinition(name, text, d); err != nil {
			return nil, nil, err
		}
	}
	after, err := loosefk.Parse(name, bytes.NewReader(text))
	for _, d := range want {
		if !slices.ContainsFunc(after, d.Same) {
			err = errors.Join(err, fmt.Errorf("%s would be missing", d))
		}
	}
	if err != nil || len(after) != len(want) {
		return nil, nil, fmt.Errorf("%s is written in a way that can't be changed automatically; change it by hand: add %v, remove %v: %w",
			name, add, remove, cmp.Or(err, errors.New("the result would hold other definitions than meant")))
	}
	return text, after, nil
}
