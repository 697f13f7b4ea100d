package config

import (
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
