package config

import "reflect"

// Changed returns the keys whose values differ in other, in the order of the
// documentation.
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
