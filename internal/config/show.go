package config

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Show writes the effective configuration as YAML that Load can read, with a comment
// per setting that says where its value comes from. Secrets are hidden.
func (c *Config) Show(w io.Writer) error {
	out := bufio.NewWriter(w)
	var open []string // groups of the previous line
	for i := range settings {
		s := &settings[i]
		parts := strings.Split(s.key, ".")
		groups, name := parts[:len(parts)-1], parts[len(parts)-1]
		for depth, group := range groups {
			if depth < len(open) && open[depth] == group {
				continue
			}
			open = open[:min(depth, len(open))]
			fmt.Fprintf(out, "%s%s:\n", indent(depth), group)
			open = append(open, group)
		}
		open = groups
		comment := c.Source(s.key)
		if s.unset && !c.isSet(s.key) {
			// The value is derived from another setting, so it is commented out: Load
			// must not read it as set.
			name, comment = "# "+name, "default: "+s.derived
		}
		line := indent(len(groups)) + name + ": " + c.scalar(s)
		fmt.Fprintf(out, "%-46s # %s\n", line, oneLine(comment))
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("writing the configuration: %w", err)
	}
	return nil
}

func indent(depth int) string { return strings.Repeat("  ", depth) }

// scalar returns a setting's value in YAML. Numbers, sizes, durations and booleans need
// no quotes; text is quoted if YAML requires it.
func (c *Config) scalar(s *setting) string {
	text := s.field(c).show()
	switch s.field(c).(type) {
	case textField, offField, secretField, dsnField, listField, networksField:
	default:
		return text
	}
	if quoted, err := yaml.Marshal(text); err == nil {
		if line := strings.TrimSuffix(string(quoted), "\n"); !strings.Contains(line, "\n") {
			return line
		}
	}
	return oneLine(text)
}

// oneLine quotes text that contains line breaks. JSON strings are also YAML strings.
func oneLine(text string) string {
	if !strings.ContainsAny(text, "\r\n") {
		return text
	}
	quoted, err := json.Marshal(text)
	if err != nil {
		return hidden // can't happen: every string has a JSON form
	}
	return string(quoted)
}
