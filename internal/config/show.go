package config

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Show writes the effective configuration to `w`, as YAML that Load can read. A comment
// after each setting says where the setting's value comes from. Secrets are hidden.
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
			// The value is a default that was computed from other settings. It is commented
			// out, since Load would otherwise take it for a value that was given.
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

// Shown is a setting as Show writes it.
type Shown struct{ Key, Value, Source string }

// Settings returns the effective configuration as Show writes it, in the same order. Secrets are
// hidden. The source of a default that was computed from other settings says from which.
func (c *Config) Settings() []Shown {
	list := make([]Shown, 0, len(settings))
	for i := range settings {
		s := &settings[i]
		source := c.Source(s.key)
		if s.unset && !c.isSet(s.key) {
			source = "default: " + s.derived
		}
		list = append(list, Shown{s.key, s.field(c).show(), source})
	}
	return list
}

func indent(depth int) string { return strings.Repeat("  ", depth) }

// scalar returns a setting's value as YAML. It quotes text where YAML requires it.
// Numbers, sizes, durations and booleans need no quotes.
func (c *Config) scalar(s *setting) string {
	text := s.field(c).show()
	switch s.field(c).(type) {
	case textField, offField, secretField, dsnField, listField, groupsField, networksField, delaysField:
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

// oneLine returns text as it is, or as a JSON string if it contains line breaks. Every
// JSON string is also a YAML string.
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
