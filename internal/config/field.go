package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
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

// listField is a setting whose value is a list of texts, separated by commas.
type listField struct{ p *[]string }

func (f listField) set(text string) error {
	var list []string
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			list = append(list, part)
		}
	}
	*f.p = list
	return nil
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

// eventField is the setting of one event's review delay, below gc.review_after_events.
type eventField struct {
	c     *Config
	event string
}

func (f eventField) set(text string) error {
	if text == "" {
		return errors.New(`it is empty; write a duration such as "24h", or leave the key out`)
	}
	var d time.Duration
	if err := (durationField{&d, 0, maxDuration}).set(text); err != nil {
		return err
	}
	f.c.GC.ReviewAfterEvents[f.event] = d
	return nil
}

func (f eventField) show() string {
	return formatDuration(f.c.GC.Delay(f.event))
}
