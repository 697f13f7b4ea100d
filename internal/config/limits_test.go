package config

import (
	"strings"
	"testing"
)

func TestDefaultBodyMemory(t *testing.T) {
	t.Parallel()
	for limit, want := range map[int64]int64{0: 256 << 20, 64 << 20: 32 << 20, 1 << 30: 256 << 20, 1 << 40: 1 << 30} {
		if got := defaultBodyMemory(limit); got != want {
			t.Errorf("with %d MiB of memory: %d MiB, want %d", limit>>20, got>>20, want>>20)
		}
	}
	if c := mustLoad(t, "", "PURSER_HTTP_BODY_MEMORY=0"); c.HTTP.BodyMemory != 0 || c.Validate() != nil {
		t.Error("0 isn't no limit")
	}
}

func TestLimitsThatContradict(t *testing.T) {
	t.Parallel()
	for _, env := range []string{
		"PURSER_HTTP_BODY_MEMORY=1MiB", "PURSER_HTTP_MAX_CLIENT_CONNECTIONS=20000", "PURSER_UPLOADS_MAX_CLIENT_OPEN=60000",
	} {
		key, _, _ := strings.Cut(env, "=")
		err := mustLoad(t, "", env).Validate()
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v", env, err)
		}
	}
	if err := mustLoad(t, "", "PURSER_HTTP_MAX_CONNECTIONS=100").Validate(); err != nil {
		t.Errorf("fewer connections than a client may have by default: %v", err)
	}
}
