package management

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/server"
)

// checkBody returns an error if a JSON body has a string that PostgreSQL can't store, because
// it contains the character NUL, which JSON writes as \u0000. checkBody accepts a body that
// isn't JSON, because the parser that reads the body afterwards refuses it. It accepts invalid
// UTF-8, because encoding/json replaces it by valid characters.
func checkBody(body []byte) error {
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		return nil
	}
	return checkMembers("the body", v)
}

func checkMembers(what string, v any) error {
	switch v := v.(type) {
	case string:
		return server.CheckText(what, v)
	case []any:
		for _, element := range v {
			if err := checkMembers(what, element); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if err := server.CheckText("the name of a member of "+what, name); err != nil {
				return err
			}
			if err := checkMembers(strings.TrimPrefix(what+"."+name, "the body."), v[name]); err != nil {
				return err
			}
		}
	}
	return nil
}
