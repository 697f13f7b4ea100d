package config

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/purser-registry/purser/internal/operatorfile"
)

// maxFile limits the size in bytes of the configuration file.
const maxFile = 1 << 20

// loadFile applies the settings of the YAML file at path and returns the problems.
func (c *Config) loadFile(path string) []error {
	file, err := operatorfile.Read(context.Background(), path, maxFile)
	if err != nil {
		return []error{fmt.Errorf("reading the configuration: %w; check the path and that it may be read", err)}
	}
	return c.loadYAML(path, file.Text)
}

func (c *Config) loadYAML(path string, text []byte) []error {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document yaml.Node
	err := decoder.Decode(&document)
	if errors.Is(err, io.EOF) {
		return nil // the file has only comments
	}
	if err != nil {
		return []error{syntaxProblem(path, text, err)}
	}
	w := &walker{c: c, path: path}
	w.group("", document.Content[0])
	var more yaml.Node
	if err := decoder.Decode(&more); err == nil {
		w.problem(&more, "", "a second document begins here; keep all settings in one")
	} else if !errors.Is(err, io.EOF) {
		w.problems = append(w.problems, syntaxProblem(path, text, err))
	}
	return w.problems
}

var (
	yamlLine  = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)
	yamlTab   = regexp.MustCompile(`(?m)^ *\t`)
	yamlLater = regexp.MustCompile(`^(did not find|could not find) `) // errors for which the parser names the previous line
)

// syntaxProblem returns the YAML parser's error `err` in the form of this package's other
// errors, with path and line in front. If `err` names no line, the returned error names line
// 1. An error about an unknown anchor doesn't repeat the anchor's name, since this may be a
// secret that lacks quotes.
func syntaxProblem(path string, text []byte, err error) error {
	reason, line := err.Error(), 1
	if m := yamlLine.FindStringSubmatch(reason); m != nil {
		reason = reason[len(m[0]):]
		if n, err := strconv.Atoi(m[1]); err == nil {
			if line = n; yamlLater.MatchString(reason) {
				line++
			}
		}
	}
	const token = "found character that cannot start any token"
	if tab := yamlTab.FindIndex(text); tab != nil && (strings.Contains(reason, "tab character") || reason == token) {
		line, reason = 1+bytes.Count(text[:tab[0]], []byte("\n")), "a tab indents this line; use spaces"
	} else if reason == token {
		reason = "a value begins with a character that needs quotes, such as @ or `"
	}
	if strings.Contains(reason, "anchor") {
		reason = "unknown anchor; quote a value that begins with *"
	}
	return fmt.Errorf("%s:%d: this isn't YAML: %s", path, line, reason)
}

// walker applies the settings in the YAML nodes of one file. It descends only as deep as
// the longest key has parts, so a YAML alias that contains itself can't make it loop.
type walker struct {
	c        *Config
	path     string
	problems []error
}

func (w *walker) problem(n *yaml.Node, key, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if key != "" {
		text = key + ": " + text
	}
	w.problems = append(w.problems, fmt.Errorf("%s: %s", w.place(n), text))
}

func (w *walker) place(n *yaml.Node) string {
	return fmt.Sprintf("%s:%d", w.path, n.Line)
}

// group applies the settings in the YAML mapping `n`, whose keys all begin with `prefix`.
// If prefix is empty, n is the whole file.
func (w *walker) group(prefix string, n *yaml.Node) {
	n = resolve(n)
	if isNull(n) {
		return
	}
	if n.Kind != yaml.MappingNode {
		w.problem(n, prefix, "it holds settings of its own; write them below it, indented, as \"name: value\"")
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		key := name.Value
		if prefix != "" {
			key = prefix + "." + key
		}
		if name.Kind != yaml.ScalarNode {
			w.problem(name, prefix, "the name of a setting must be plain text")
			continue
		}
		if line, twice := seen[key]; twice {
			w.problem(name, key, "it is already set in line %d; keep one of them", line)
			continue
		}
		seen[key] = name.Line
		w.member(key, name, value)
	}
}

func (w *walker) member(key string, name, value *yaml.Node) {
	if isGroup(key) {
		w.group(key, value)
		return
	}
	s := settingOf(key)
	if s == nil {
		w.problem(name, key, "there is no such setting%s", didYouMean(key, allKeys()))
		return
	}
	// Errors name the line of the setting's key: if the setting's value is a YAML alias,
	// the value itself is on another line.
	value = resolve(value)
	if isNull(value) {
		return // "addr:" without a value keeps the default
	}
	text := value.Value
	if _, ok := s.field(w.c).(objectField); ok && value.Kind == yaml.MappingNode {
		var members map[string]any
		object, err := []byte(nil), value.Decode(&members)
		if err == nil {
			object, err = json.Marshal(members)
		}
		if err != nil {
			w.problem(name, key, "it can't be written as JSON: %v", err)
			return
		}
		text = string(object)
	} else if value.Kind != yaml.ScalarNode {
		w.problem(name, key, "it must be one value, not a list or a group")
		return
	}
	if err := w.c.set(s, text, w.place(name)); err != nil {
		w.problems = append(w.problems, err)
	}
}

func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}
