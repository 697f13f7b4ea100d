package config

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"testing"
)

// The chart refuses each setting that is a secret outside of a secret.
func TestChartRefusesSecrets(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../deploy/chart/purser/templates/configmap.yaml")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`\$secret := list (.*) }}`).FindSubmatch(text)
	if line == nil {
		t.Fatal("the chart has no list of secrets")
	}
	var got, want []string
	for _, m := range regexp.MustCompile(`"([a-z0-9_.]+)"`).FindAllSubmatch(line[1], -1) {
		got = append(got, string(m[1]))
	}
	for i := range settings {
		switch settings[i].field(new(Config)).(type) {
		case secretField, dsnField:
			want = append(want, settings[i].key)
		}
	}
	want = append(want, "storage.s3.access_key") // it goes with the secret key
	slices.Sort(got)
	slices.Sort(want)
	if len(want) < 8 || !slices.Equal(got, want) {
		t.Errorf("the chart refuses %v, want %v", got, want)
	}
}

// TestChartKnowsSettings: the chart refuses settings that don't exist, so its schema has all that do.
func TestChartKnowsSettings(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../deploy/chart/purser/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	type group struct {
		More       json.RawMessage `json:"additionalProperties"`
		Properties map[string]*group
	}
	var schema group
	if err := json.Unmarshal(text, &schema); err != nil || schema.Properties["config"] == nil {
		t.Fatalf("the schema of values has no settings: %v", err)
	}
	var got []string
	var collect func(prefix string, g *group)
	collect = func(prefix string, g *group) {
		for name, member := range g.Properties {
			if key := prefix + name; member.Properties == nil {
				got = append(got, key)
			} else if collect(key+".", member); string(member.More) != "false" {
				t.Errorf("the schema of values takes any setting below config.%s", key)
			}
		}
	}
	collect("", schema.Properties["config"])
	want := allKeys()
	slices.Sort(got)
	slices.Sort(want)
	for _, key := range got {
		if !slices.Contains(want, key) {
			t.Errorf("deploy/chart/purser/values.schema.json has config.%s, which is no setting", key)
		}
	}
	for _, key := range want {
		if !slices.Contains(got, key) {
			t.Errorf("deploy/chart/purser/values.schema.json lacks the setting config.%s", key)
		}
	}
}
