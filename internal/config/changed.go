package config

import "reflect"

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
