package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

// TestSignatureOfTheSpecification signs a notice with a known secret. The secret, the
// notice and the expected signature are those in the tests of the specification's
// libraries.
func TestSignatureOfTheSpecification(t *testing.T) {
	t.Parallel()
	sign, err := signer("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	must(t, err)
	got := sign("msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), `{"test": 2432232314}`)
	if got != "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" {
		t.Error(got)
	}
}

// verify checks a signature in the way in which a receiver does. It shares no code with the
// signer.
func verify(t *testing.T, r request, key []byte) {
	t.Helper()
	stamp := r.header.Get("Webhook-Timestamp")
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	must(t, err)
	if off := math.Abs(float64(time.Now().Unix() - seconds)); off > 60 {
		t.Errorf("the timestamp is %v seconds off", off)
	}
	version, signature, _ := strings.Cut(r.header.Get("Webhook-Signature"), ",")
	got, err := base64.StdEncoding.DecodeString(signature)
	must(t, err)
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%s.%s", r.header.Get("Webhook-Id"), stamp, r.body)
	if version != "v1" || !hmac.Equal(got, mac.Sum(nil)) {
		t.Errorf("the signature %q is wrong", r.header.Get("Webhook-Signature"))
	}
}

func TestSignedRequests(t *testing.T) {
	t.Parallel()
	key := []byte("0123456789abcdefghijklmnopqrstuv")
	text := "correct horse battery staple"
	for _, test := range []struct {
		name, secret string
		key          []byte
	}{
		{"whsec", "whsec_" + base64.StdEncoding.EncodeToString(key), key},
		{"plain text", text, []byte(text)},
		{"none", "", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d, rec := dbtest.New(t), receive(t, nil)
			s := newSender(t, Options{DB: d, URL: rec.URL, Secret: test.secret})
			id := queue(t, s, d, Event{Data: map[string]string{"text": "é < 💡"}})
			once(t, s)
			list := rec.requests()
			if len(list) != 1 || list[0].header.Get("webhook-id") != id.String() || list[0].header.Get("webhook-timestamp") == "" {
				t.Fatalf("got %+v", list)
			}
			if test.key == nil {
				if _, ok := list[0].header["Webhook-Signature"]; ok {
					t.Error("it is signed without a secret")
				}
				return
			}
			verify(t, list[0], test.key)
		})
	}
}

func TestSecrets(t *testing.T) {
	t.Parallel()
	b64 := func(n int) string { return base64.StdEncoding.EncodeToString(make([]byte, n)) }
	for _, test := range []struct{ name, secret, want string }{ // want "": the secret is accepted
		{"least", "whsec_" + b64(24), ""},
		{"most", "whsec_" + b64(64), ""},
		{"text", strings.Repeat("x", 24), ""},
		{"long text", strings.Repeat("x", 512), ""},
		{"short", "whsec_" + b64(23), "stands for 23 bytes"},
		{"long", "whsec_" + b64(65), "stands for 65 bytes"},
		{"nothing", "whsec_", "stands for 0 bytes"},
		{"not base64", "whsec_SECRET!!", "isn't base64"},
		{"line in it", "whsec_" + b64(24)[:8] + "\n" + b64(24)[8:], "isn't base64"},
		{"URL's base64", "whsec_" + strings.Repeat("-_", 16), "isn't base64"},
		{"short text", "SECRET", "has 6 bytes"},
		{"longer text", strings.Repeat("x", 513), "has 513 bytes"},
		{"line", strings.Repeat("x", 24) + "\n", "white space"},
		{"space", " whsec_" + b64(24), "white space"},
	} {
		_, err := parseSecret(test.secret)
		if (err == nil) != (test.want == "") || err != nil && (!strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "SECRET")) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}
