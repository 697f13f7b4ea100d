package config

import "reflect"

// Changed returns the keys whose values other has otherwise, in the order of the
// documentation.
func (c *Config) Changed(other *Config) []string {
	var keys []string
	for i := range settings {
		mine, others := settings[i].field(c), settings[i].field(other)
		changed := mine.show() != others.show()
		switch mine.(type) {
		case secretField, dsnField: // they show no secrets, and hold a pointer to the value
			changed = !reflect.DeepEqual(mine, others)
		}
		if changed {
			keys = append(keys, settings[i].key)
		}
	}
	return keys
}
