package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// ownKinds returns those of Kubernetes' own kinds that the API server offers, in the order in which
// they are read. Lists of others couldn't be read.
func (c *cluster) ownKinds(ctx context.Context, d *deployed) (kinds []kind, err error) {
	offered := map[string][]string{} // by group
	for _, k := range d.own() {
		if _, known := offered[k.group]; !known {
			if offered[k.group], err = c.resources(ctx, k.group); err != nil {
				return nil, fmt.Errorf("asking for the kinds of %s: %w", k.group, err)
			}
		}
		switch {
		case slices.Contains(offered[k.group], k.resource):
			kinds = append(kinds, k)
		case k.resource == "pods": // every cluster has them, so this answer isn't whole
			return nil, errors.New("the API server says that it has no pods")
		default:
			d.miss("the API server has no %s", k.resource)
		}
	}
	return kinds, nil
}

// resources returns the resources that the API server offers in a group, none if it hasn't the group.
func (c *cluster) resources(ctx context.Context, group string) (names []string, err error) {
	var answer struct {
		typed
		Resources []struct {
			Name string `json:"name"`
		} `json:"resources"`
	}
	err = c.get(ctx, group, nil, "APIResourceList", &answer)
	if refused, ok := errors.AsType[*statusError](err); ok && refused.status == http.StatusNotFound {
		return []string{}, nil
	}
	for _, r := range answer.Resources {
		names = append(names, r.Name)
	}
	return names, err
}

// definition is a CustomResourceDefinition.
type definition struct {
	Spec struct {
		Group string `json:"group"`
		Scope string `json:"scope"`
		Names struct {
			Plural string `json:"plural"`
			Kind   string `json:"kind"`
			List   string `json:"listKind"`
		} `json:"names"`
		Versions []struct {
			Name   string `json:"name"`
			Served bool   `json:"served"`
			Schema struct {
				OpenAPI schema `json:"openAPIV3Schema"`
			} `json:"schema"`
		} `json:"versions"`
	} `json:"spec"`
}

// schema is the part of a schema that may have a template of pods.
type schema struct {
	Properties map[string]schema `json:"properties"`
	Items      *schema           `json:"items"`                // of an array
	Others     *schema           `json:"additionalProperties"` // of a map
	// Any says that objects may have members that the schema doesn't name.
	Any bool `json:"x-kubernetes-preserve-unknown-fields"`
}

// UnmarshalJSON reads an object, and takes anything else for an empty schema.
func (s *schema) UnmarshalJSON(b []byte) error {
	type plain schema
	if len(b) == 0 || b[0] != '{' {
		return nil
	}
	return json.Unmarshal(b, (*plain)(s))
}

// hasTemplate reports whether objects have templates of pods somewhere in their spec, or may have one
// in spec.template.
func (s schema) hasTemplate() bool {
	if s.Properties["spec"].nests() {
		return true
	}
	for depth, member := range []string{"spec", "template", "spec"} {
		if s = s.Properties[member]; len(s.Properties) == 0 {
			return s.Any && depth > 0
		}
	}
	_, ok := s.Properties["containers"]
	return ok || s.Any
}

// nests reports whether values of the schema have a member spec.containers, at any depth: a template of
// pods, such as those in the groups of workers of a RayCluster.
func (s schema) nests() bool {
	for name, member := range s.Properties {
		if _, ok := member.Properties["containers"]; ok && name == "spec" || member.nests() {
			return true
		}
	}
	return s.Items != nil && s.Items.nests() || s.Others != nil && s.Others.nests()
}

// definitionsPage is how many definitions a page has: one may have a megabyte.
const definitionsPage = 20

// customKinds returns the custom kinds that have templates of pods, such as Argo's Rollouts and JobSets. Without
// the right to list definitions it returns none, and says so: most of what such objects run is in
// the list of pods anyway, and only what they would start later is missed.
func (c *cluster) customKinds(ctx context.Context, d *deployed) (kinds []kind, err error) {
	names := map[string]bool{}
	err = list(ctx, c, "apis/apiextensions.k8s.io/v1", "", "customresourcedefinitions", "CustomResourceDefinitionList", definitionsPage, func(def definition) {
		for _, v := range def.Spec.Versions {
			// Every version that is served has all objects.
			name := def.Spec.Names.Plural + "." + def.Spec.Group
			if !v.Served || names[name] || !v.Schema.OpenAPI.hasTemplate() {
				continue
			}
			names[name] = true
			if def.Spec.Scope != "Namespaced" && !slices.Contains(c.namespaces, "") {
				d.miss("%s aren't in namespaces and weren't read", name)
				continue
			}
			kinds = append(kinds, custom(def, v.Name, d))
		}
	})
	if refused, ok := errors.AsType[*statusError](err); ok {
		switch refused.status {
		case http.StatusForbidden:
			d.miss("custom resources weren't read: %v", err)
			return nil, nil
		case http.StatusNotFound:
			return nil, nil
		}
	}
	return kinds, err
}

// customObject is an object of a custom kind.
type customObject struct {
	Metadata metadata `json:"metadata"`
	Spec     any      `json:"spec"`
}

// templates calls `each` with the specifications of the templates of pods in a value: members spec that
// have containers. Those whose members aren't of the types of such a specification are of no template.
func templates(value any, each func(podSpec)) {
	switch value := value.(type) {
	case []any:
		for _, one := range value {
			templates(one, each)
		}
	case map[string]any:
		if spec, ok := value["spec"].(map[string]any); ok && spec["containers"] != nil {
			var s podSpec
			if text, err := json.Marshal(spec); err == nil && json.Unmarshal(text, &s) == nil {
				each(s)
			}
		}
		for _, one := range value {
			templates(one, each)
		}
	}
}

func custom(def definition, version string, d *deployed) kind {
	group := "apis/" + def.Spec.Group + "/" + version
	user := strings.ToLower(def.Spec.Names.Kind)
	of := cmp.Or(def.Spec.Names.List, def.Spec.Names.Kind+"List")
	return kind{def.Spec.Group, def.Spec.Names.Plural, reader(group, def.Spec.Names.Plural, of, func(o customObject) {
		templates(o.Spec, func(s podSpec) { d.template(s, time.Time{}, o.Metadata.user(user)) })
	})}
}

// miss notes what isn't read, once.
func (d *deployed) miss(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(d.unread, text) {
		d.unread = append(d.unread, text)
	}
}
