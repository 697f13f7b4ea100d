package config

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
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
		w.problem(name, key, "there is no such setting%s", didYouMean(key, slices.Concat(allKeys(), allGroups())))
		return
	}
	// Errors name the line of the setting's key: if the setting's value is a YAML alias,
	// the value itself is on another line.
	value = resolve(value)
	if isNull(value) {
		return // "addr:" without a value keeps the default
	}
	if delays, ok := s.field(w.c).(delaysField); ok && value.Kind == yaml.MappingNode {
		w.delays(s, delays, name, value)
		return
	}
	f := s.field(w.c)
	_, isObject := f.(objectField)
	_, isList := f.(manyField)
	err := error(nil)
	switch {
	case value.Kind == yaml.ScalarNode:
		err = w.c.set(s, value.Value, w.place(name))
	case isObject && value.Kind == yaml.MappingNode:
		var object string
		if object, err = toJSON(value); err != nil {
			w.problem(name, key, "it can't be written as JSON: %v", err)
			return
		}
		err = w.c.set(s, object, w.place(name))
	case isList && value.Kind == yaml.SequenceNode:
		entries, problem := entriesOf(value)
		if problem != "" {
			w.problem(name, key, "%s", problem)
			return
		}
		err = w.c.setList(s, entries, w.place(name))
	case isList:
		w.problem(name, key, "it must be a list, or one value with commas, not a group")
	default:
		w.problem(name, key, "it must be one value, not a list or a group")
	}
	if err != nil {
		w.problems = append(w.problems, err)
	}
}

// delays applies a group of delays by event.
func (w *walker) delays(s *setting, f delaysField, name, group *yaml.Node) {
	pairs := map[string]string{}
	for i := 0; i+1 < len(group.Content); i += 2 {
		event, delay := group.Content[i], resolve(group.Content[i+1])
		_, twice := pairs[event.Value]
		switch {
		case event.Kind != yaml.ScalarNode || delay.Kind != yaml.ScalarNode:
			w.problem(event, s.key, "it must have an event and a duration in each line, tag_delete: 1h")
			return
		case twice:
			w.problem(event, s.key, "the event %s stands there twice; keep one of them", event.Value)
			return
		case !isNull(delay): // "tag_delete:" without a value keeps the default
			pairs[event.Value] = delay.Value
		}
	}
	if err := f.setPairs(pairs); err != nil {
		w.problem(name, s.key, "%v", err)
		return
	}
	w.c.sources[s.key] = w.place(name)
}

func toJSON(mapping *yaml.Node) (string, error) {
	var members map[string]any
	if err := mapping.Decode(&members); err != nil {
		return "", err
	}
	object, err := json.Marshal(members)
	return string(object), err
}

// entriesOf returns the entries of a list, or what is wrong with one of them.
func entriesOf(list *yaml.Node) (entries []string, problem string) {
	for i, entry := range list.Content {
		entry = resolve(entry)
		text := strings.TrimSpace(entry.Value)
		switch {
		case entry.Kind != yaml.ScalarNode:
			return nil, fmt.Sprintf("entry %d of the list must be one value, not a list or a group", i+1)
		case isNull(entry) || text == "":
			return nil, fmt.Sprintf("entry %d of the list is empty; remove it", i+1)
		}
		entries = append(entries, text)
	}
	return entries, ""
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
