package config

import (
	"cmp"
	"fmt"
	"reflect"
)

// Changed returns the keys of all settings whose value in `other` differs from the value in
// `c`, in the order of docs/configuration.md.
func (c *Config) Changed(other *Config) []string {
	var keys []string
	for i := range settings {
		mine, others := settings[i].field(c), settings[i].field(other)
		changed := mine.show() != others.show()
		switch mine.(type) {
		case secretField, dsnField: // show hides secrets, and the fields point to their values
			changed = !reflect.DeepEqual(mine, others)
		}
		if changed {
			keys = append(keys, settings[i].key)
		}
	}
	return keys
}

// Difference is a setting that has one value here and another one in a server.
type Difference struct {
	Key    string
	Own    string // the value, as Show writes it
	Source string // where the own value comes from
	Other  string
	// Decides says that the setting decides what is deleted and what is kept, or where.
	Decides bool
}

// String says how the values differ; a server's are "there".
func (d Difference) String() string {
	orEmpty := func(value string) string { return cmp.Or(value, "empty") }
	return fmt.Sprintf("%s is %s here (%s) and %s there", d.Key, orEmpty(d.Own), d.Source, orEmpty(d.Other))
}

// Differences compares the settings with those of a server, which has written down what [Config.Settings]
// returns by key. Secrets can't be compared. A setting that the server, of another version, doesn't
// know differs if it isn't the default here. What is computed from a machine's memory isn't compared.
func (c *Config) Differences(server map[string]string) []Difference {
	var list []Difference
	for i := range settings {
		s := &settings[i]
		if s.unset && !c.isSet(s.key) {
			continue
		}
		other, known := server[s.key]
		d := Difference{s.key, s.field(c).show(), c.Source(s.key), other, s.decides}
		switch {
		case !known && !c.isSet(s.key), known && other == d.Own:
			continue
		case !known:
			d.Other = "unknown"
		}
		list = append(list, d)
	}
	return list
}
