package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/gc/events"
)

// field reads and writes the value of one setting in a Config. If set returns an error, it
// has left the value unchanged.
type field interface {
	set(text string) error
	// show returns the value in the format that set accepts, with secrets hidden.
	show() string
}

type textField struct{ p *string }

func (f textField) set(text string) error {
	*f.p = text
	return nil
}

func (f textField) show() string { return *f.p }

// objectField is a setting whose value is a JSON object. In the configuration file the
// object may also be written as YAML.
type objectField struct{ p *string }

func (f objectField) set(text string) error {
	var object map[string]json.RawMessage
	if text != "" && (json.Unmarshal([]byte(text), &object) != nil || object == nil) {
		return errors.New(`it should be a JSON object, such as {"method": "number_of_tags", "value": 10}`)
	}
	*f.p = text
	return nil
}

func (f objectField) show() string { return *f.p }

// offField is a text setting whose value "off" means the same as an empty text.
type offField struct{ p *string }

func (f offField) set(text string) error {
	if text == "off" {
		text = ""
	}
	*f.p = text
	return nil
}

func (f offField) show() string {
	if *f.p == "" {
		return "off"
	}
	return *f.p
}

type secretField struct{ p *Secret }

func (f secretField) set(text string) error {
	*f.p = Secret(text)
	return nil
}

func (f secretField) show() string { return f.p.String() }

type dsnField struct{ p *DSN }

func (f dsnField) set(text string) error {
	*f.p = DSN(text)
	return nil
}

func (f dsnField) show() string { return f.p.String() }

type choiceField struct {
	p       *string
	choices []string
}

func (f choiceField) set(text string) error {
	if !slices.Contains(f.choices, text) {
		return fmt.Errorf("%q isn't possible; use one of %s", text, strings.Join(f.choices, ", "))
	}
	*f.p = text
	return nil
}

func (f choiceField) show() string { return *f.p }

type boolField struct{ p *bool }

func (f boolField) set(text string) error {
	b, err := strconv.ParseBool(text)
	if err != nil {
		return fmt.Errorf("%q is neither true nor false; write one of them", text)
	}
	*f.p = b
	return nil
}

func (f boolField) show() string { return strconv.FormatBool(*f.p) }

type intField struct {
	p        *int
	min, max int
}

func (f intField) set(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < f.min || n > f.max {
		return fmt.Errorf("%q isn't possible; use a whole number from %d to %d", text, f.min, f.max)
	}
	*f.p = n
	return nil
}

func (f intField) show() string { return strconv.Itoa(*f.p) }

type durationField struct {
	p        *time.Duration
	min, max time.Duration
}

func (f durationField) set(text string) error {
	d, err := parseDuration(text)
	if err != nil {
		return err
	}
	if d < f.min {
		return fmt.Errorf("%s is too short; use at least %s", text, formatDuration(f.min))
	}
	if d > f.max {
		return fmt.Errorf("%s is too long; use at most %s", text, formatDuration(f.max))
	}
	*f.p = d
	return nil
}

func (f durationField) show() string { return formatDuration(*f.p) }

// secondsField is a duration setting that also accepts a number without a unit, in
// seconds.
type secondsField struct{ durationField }

func (f secondsField) set(text string) error {
	if text != "" && strings.Trim(text, "0123456789") == "" {
		text += "s"
	}
	return f.durationField.set(text)
}

// manyField is the field of a setting that has many values. In the configuration file they may be a
// list; elsewhere they are one text, in which commas separate them.
type manyField interface {
	field
	// setList sets the values, none of which is empty or has space at an end.
	setList(entries []string) error
}

// listField is a setting whose value is a list of texts, separated by commas.
type listField struct{ p *[]string }

func (f listField) set(text string) error {
	*f.p = splitList(text, ',')
	return nil
}

func (f listField) setList(entries []string) error {
	for _, entry := range entries {
		if strings.Contains(entry, ",") {
			return fmt.Errorf("the entry %q has a comma; write an entry for each value", entry)
		}
	}
	*f.p = entries
	return nil
}

// splitList splits a text at a separator that no backslash is before, and leaves empty parts out.
func splitList(text string, separator byte) (list []string) {
	begin := 0
	for i := 0; i <= len(text); i++ {
		if i < len(text) && (text[i] != separator || i > 0 && text[i-1] == '\\') {
			continue
		}
		if part := strings.TrimSpace(text[begin:i]); part != "" {
			list = append(list, part)
		}
		begin = i + 1
	}
	return list
}

// groupsField is a setting whose value is a list of groups of a directory: names, or DNs, which have
// commas themselves. Therefore semicolons separate groups if there are any. Without one, a text is either
// one DN or a list of names with commas.
type groupsField struct{ p *[]string }

func (f groupsField) set(text string) error {
	list := splitList(text, ';')
	if len(list) > 1 || strings.HasSuffix(strings.TrimSpace(text), ";") {
		*f.p = list
		return nil
	}
	parts := splitList(text, ',')
	pairs, ambiguous := 0, false
	for i, part := range parts {
		if !strings.Contains(part, "=") {
			continue
		}
		pairs++
		// In a DN the domain, or the organization and its country, stand last.
		ambiguous = ambiguous || i > 0 && endsDN(parts[i-1]) && !endsDN(part)
	}
	switch {
	case pairs == 0:
		*f.p = parts
	case pairs < len(parts) || ambiguous:
		return errors.New(`it isn't clear where a group ends, since DNs have commas too; write a semicolon between groups, "admins; cn=ops,ou=groups,dc=example,dc=com", or a list in the configuration file`)
	default:
		*f.p = list
	}
	return nil
}

// endsDN says whether a part of a DN is one of those that stand last.
func endsDN(part string) bool {
	kind, _, _ := strings.Cut(strings.ToLower(part), "=")
	return slices.Contains([]string{"dc", "o", "c"}, strings.TrimSpace(kind))
}

func (f groupsField) setList(entries []string) error {
	*f.p = entries
	return nil
}

func (f groupsField) show() string {
	text := strings.Join(*f.p, "; ")
	if strings.Contains(text, "=") {
		return text
	}
	return strings.Join(*f.p, ", ")
}

func (f listField) show() string { return strings.Join(*f.p, ", ") }

type sizeField struct{ p *int64 }

func (f sizeField) set(text string) error {
	n, err := parseSize(text)
	if err != nil {
		return err
	}
	*f.p = n
	return nil
}

func (f sizeField) show() string { return formatSize(*f.p) }

// delaysField is the setting of review delays after single events: pairs of an event and a duration,
// separated by commas. In the configuration file they may also be a group.
type delaysField struct{ p *map[string]time.Duration }

func (f delaysField) set(text string) error {
	pairs := map[string]string{}
	for _, pair := range splitList(text, ',') {
		event, delay, ok := strings.Cut(pair, "=")
		event = strings.TrimSpace(event)
		if _, twice := pairs[event]; twice {
			return fmt.Errorf("the event %s stands there twice; keep one of them", event)
		}
		if !ok {
			return fmt.Errorf("%q is no event with its delay; write tag_delete=1h, blob_upload=2d", pair)
		}
		pairs[event] = strings.TrimSpace(delay)
	}
	return f.setPairs(pairs)
}

// setPairs sets the delays, which are texts by event.
func (f delaysField) setPairs(pairs map[string]string) error {
	delays := map[string]time.Duration{}
	for event, text := range pairs {
		if !slices.Contains(events.WithDelay(), event) {
			return fmt.Errorf("there is no event %q%s", event, didYouMean(event, events.WithDelay()))
		}
		if text == "" {
			return fmt.Errorf(`the delay of %s is empty; write a duration such as "24h", or leave the event out`, event)
		}
		var d time.Duration
		if err := (durationField{&d, 0, maxDuration}).set(text); err != nil {
			return fmt.Errorf("the delay of %s: %w", event, err)
		}
		delays[event] = d
	}
	*f.p = delays
	return nil
}

func (f delaysField) show() string {
	var pairs []string
	for _, event := range events.WithDelay() {
		if d, ok := (*f.p)[event]; ok {
			pairs = append(pairs, event+"="+formatDuration(d))
		}
	}
	return strings.Join(pairs, ", ")
}
