package management

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/server"
)

// checkBody refuses strings in a JSON body that PostgreSQL can't store, as server.CheckText
// does: in JSON, NUL is written as \u0000. It accepts a body that isn't JSON, because the
// parser that follows refuses it, and invalid UTF-8, because encoding/json replaces it.
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
