package token

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

func part(t testing.TB, raw string, i int) []byte {
	t.Helper()
	text, err := base64.RawURLEncoding.DecodeString(strings.Split(raw, ".")[i])
	must(t, err)
	return text
}

// refused fails the test unless the token is refused as invalid, at the first time and when it
// comes again, and with an error that says nothing of the token.
func refused(t *testing.T, k *Keys, name, raw string) {
	t.Helper()
	for range 2 {
		c, err := k.Verify(t.Context(), raw)
		if !errors.Is(err, ErrInvalid) || c != nil {
			t.Errorf("%s: got %v, %v; want it refused", name, c, err)
		} else if s := err.Error(); len(s) > 200 || strings.Contains(s, "alice") {
			t.Errorf("%s: the error is %q", name, s)
		}
	}
}

// attacked is a token with its key, which attacks change.
type attacked struct {
	k      *Keys
	raw    string
	key    *key
	header members
	claims members
}

func newAttacked(t *testing.T) attacked {
	t.Helper()
	k := newKeys(t, dbtest.New(t), nil)
	raw := issue(t, k, example())
	key := k.set.Load().list[0]
	a := attacked{k, raw, key, members{"alg": "EdDSA", "kid": key.id, "typ": "JWT"}, payloadOf(t, raw)}
	// Signing the same again gives the same, so the attacks differ from a valid token only in
	// what they change.
	again := sign(t, a.header, string(part(t, raw, 1)), by(key.private))
	if again != raw {
		t.Fatalf("signed again: %s; want %s", again, raw)
	}
	if _, err := k.Verify(t.Context(), sign(t, a.header, a.claims, by(key.private))); err != nil {
		t.Fatalf("the same claims in another order: %v", err)
	}
	return a
}

// TestForgedSignatures has tokens that Purser's key hasn't signed.
func TestForgedSignatures(t *testing.T) {
	t.Parallel()
	a := newAttacked(t)
	_, other, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	factors, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	none := func(string) []byte { return nil }
	// With the public key as the secret of an HMAC, a verifier that lets the header choose the
	// algorithm would accept the token.
	confused := func(text string) []byte {
		h := hmac.New(sha256.New, a.key.public)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	byCurve := func(text string) []byte {
		sum := sha256.Sum256([]byte(text))
		r, s, err := ecdsa.Sign(rand.Reader, curve, sum[:])
		must(t, err)
		return append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	}
	byFactors := func(text string) []byte {
		sum := sha256.Sum256([]byte(text))
		signature, err := rsa.SignPKCS1v15(rand.Reader, factors, crypto.SHA256, sum[:])
		must(t, err)
		return signature
	}
	superuser := a.claims.with("sub", "root").with("uid", 1)
	parts := strings.Split(a.raw, ".")
	for name, raw := range map[string]string{
		"another key under the right id": sign(t, a.header, a.claims, by(other)),
		"another key, other claims":      sign(t, a.header, superuser, by(other)),
		"HS256, the public key":          sign(t, a.header.with("alg", "HS256"), superuser, confused),
		"HS256 without changing alg":     sign(t, a.header, superuser, confused),
		"ES256":                          sign(t, a.header.with("alg", "ES256"), superuser, byCurve),
		"RS256":                          sign(t, a.header.with("alg", "RS256"), superuser, byFactors),
		"PS256":                          sign(t, a.header.with("alg", "PS256"), superuser, byFactors),
		"Ed25519 as alg":                 sign(t, a.header.with("alg", "Ed25519"), a.claims, by(a.key.private)),
		"eddsa as alg":                   sign(t, a.header.with("alg", "eddsa"), a.claims, by(a.key.private)),
		"no alg":                         sign(t, a.header.without("alg"), a.claims, by(a.key.private)),
		"alg is no string":               sign(t, a.header.with("alg", []string{"EdDSA"}), a.claims, by(a.key.private)),
		"tampered access":                parts[0] + "." + segment(t, a.claims.with("access", []Access{repository("other/app", "pull", "push", "delete")})) + "." + parts[2],
		"tampered account":               parts[0] + "." + segment(t, superuser) + "." + parts[2],
		"tampered header":                segment(t, a.header.with("typ", "jwt")) + "." + parts[1] + "." + parts[2],
		"no signature":                   parts[0] + "." + parts[1] + ".",
		"no last dot":                    parts[0] + "." + parts[1],
		"a fourth part":                  a.raw + "." + parts[2],
		"cut signature":                  a.raw[:len(a.raw)-4],
		"longer signature":               a.raw + "AAAA",
		"zero signature":                 parts[0] + "." + parts[1] + "." + strings.Repeat("A", 86),
		"signature of another token":     parts[0] + "." + parts[1] + "." + strings.Split(issue(t, a.k, example()), ".")[2],
		"padding":                        a.raw + "==",
		"line break in the signature":    a.raw[:len(a.raw)-5] + "\n" + a.raw[len(a.raw)-5:],
		"space before":                   " " + a.raw,
		"Bearer before":                  "Bearer " + a.raw,
		"NUL after":                      a.raw + "\x00",
		"empty":                          "",
		"dots":                           "..",
		"no token":                       "purser_pat_abc",
		"very long":                      strings.Repeat("a", MaxBytes+1),
		"very long signature":            a.raw + strings.Repeat("A", MaxBytes),
	} {
		refused(t, a.k, name, raw)
	}
	for _, alg := range []string{"none", "None", "NONE", "nOnE", "", " none"} {
		refused(t, a.k, "alg "+alg, sign(t, a.header.with("alg", alg), superuser, none))
		refused(t, a.k, "signed, alg "+alg, sign(t, a.header.with("alg", alg), superuser, by(a.key.private)))
	}
	// The last character of a signature has two bits that a lax decoder ignores.
	for _, c := range "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_" {
		if raw := a.raw[:len(a.raw)-1] + string(c); raw != a.raw {
			refused(t, a.k, "last character "+string(c), raw)
		}
	}
	if _, err := a.k.Verify(t.Context(), a.raw); err != nil {
		t.Errorf("the token itself: %v", err)
	}
}

// TestTokenIsWrittenOneWay: the last character of a token's claims may have two or four bits that no byte
// needs, by the length of the claims. The same claims with other such bits are another text, which is refused.
func TestTokenIsWrittenOneWay(t *testing.T) {
	t.Parallel()
	k := newKeys(t, dbtest.New(t), nil)
	for _, name := range []string{"alice", "alicia", "aliciaa"} {
		c := example()
		c.Name = name
		raw := issue(t, k, c)
		end := strings.LastIndexByte(raw, '.')
		for _, char := range "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_" {
			if other := raw[:end-1] + string(char) + raw[end:]; other != raw {
				refused(t, k, name+" with "+string(char), other)
			}
		}
	}
}

// TestOddHeaders has tokens that Purser's key has signed, with other headers than Purser
// writes.
func TestOddHeaders(t *testing.T) {
	t.Parallel()
	a := newAttacked(t)
	id := a.key.id
	for name, header := range map[string]any{
		"typ missing":      a.header.without("typ"),
		"another typ":      a.header.with("typ", "at+jwt"),
		"kid missing":      a.header.without("kid"),
		"kid a number":     a.header.with("kid", 1),
		"kid null":         a.header.with("kid", nil),
		"kid an array":     a.header.with("kid", []string{id}),
		"crit":             a.header.with("crit", []string{"exp"}),
		"jwk":              a.header.with("jwk", members{"kty": "OKP", "crv": "Ed25519", "x": base64.RawURLEncoding.EncodeToString(a.key.public)}),
		"jku":              a.header.with("jku", "https://attacker.example.com/keys"),
		"x5u":              a.header.with("x5u", "https://attacker.example.com/keys"),
		"b64":              a.header.with("b64", false),
		"cty":              a.header.with("cty", "JWT"),
		"members twice":    `{"alg":"EdDSA","kid":"` + id + `","kid":"` + id + `","typ":"JWT"}`,
		"alg twice":        `{"alg":"none","alg":"EdDSA","kid":"` + id + `","typ":"JWT"}`,
		"other order":      `{"typ":"JWT","alg":"EdDSA","kid":"` + id + `"}`,
		"spaces":           `{"alg":"EdDSA", "kid":"` + id + `","typ":"JWT"}`,
		"other case":       `{"Alg":"EdDSA","kid":"` + id + `","typ":"JWT"}`,
		"escapes":          `{"alg":"EdDSA","kid":"` + id + `","typ":"\u004aWT"}`,
		"text after":       `{"alg":"EdDSA","kid":"` + id + `","typ":"JWT"}{}`,
		"array":            `[]`,
		"null":             `null`,
		"number":           `1`,
		"deep":             strings.Repeat("[", 8000),
		"deep and closed":  strings.Repeat(`{"a":`, 1500) + "1" + strings.Repeat("}", 1500),
		"no JSON":          `{`,
		"not UTF-8":        "{\"alg\":\"EdDSA\",\"kid\":\"\xff\",\"typ\":\"JWT\"}",
		"empty":            ``,
		"kid with spaces":  a.header.with("kid", " "+id),
		"kid in lowercase": a.header.with("kid", strings.ToLower(id)),
	} {
		refused(t, a.k, name, sign(t, header, a.claims, by(a.key.private)))
	}
	// Ids of another form don't even lead to a query.
	before := a.k.attempt
	for _, kid := range []string{"", "../../etc/passwd", "/dev/null", "' OR '1'='1", "'; DROP TABLE tokenkeys; --", "%00", id + "\x00", id + "A",
		id[:25], "file:///etc/passwd", "${jndi:ldap://x}", strings.Repeat("A", 9000), strings.Repeat("\u00c4", 13), "*", id[:25] + "%"} {
		refused(t, a.k, fmt.Sprintf("kid %.40q", kid), sign(t, a.header.with("kid", kid), a.claims, by(a.key.private)))
	}
	if a.k.attempt != before {
		t.Error("an odd key id led to a query")
	}
	refused(t, a.k, "unknown kid", sign(t, a.header.with("kid", rand.Text()), a.claims, by(a.key.private)))
	if a.k.attempt == before {
		t.Error("an unknown key id led to no query")
	}
	if n := countKeys(t, a.k.opt.DB); n != 1 {
		t.Errorf("%d keys", n)
	}
}

// TestOddClaims has tokens that Purser's key has signed, with claims that aren't those of a
// token for this registry and this time.
func TestOddClaims(t *testing.T) {
	t.Parallel()
	a := newAttacked(t)
	now := time.Now().Unix()
	lifetime := func(from, to int64) members { return a.claims.with("iat", from).with("nbf", from).with("exp", to) }
	body := string(part(t, a.raw, 1))
	for name, claims := range map[string]any{
		"another audience":      a.claims.with("aud", "other.example.com"),
		"audience prefix":       a.claims.with("aud", testService+".attacker.example.com"),
		"audience in capitals":  a.claims.with("aud", strings.ToUpper(testService)),
		"audiences":             a.claims.with("aud", []string{testService}),
		"audience empty":        a.claims.with("aud", ""),
		"audience missing":      a.claims.without("aud"),
		"another issuer":        a.claims.with("iss", "https://other.example.com"),
		"issuer with a slash":   a.claims.with("iss", testIssuer+"/"),
		"issuer missing":        a.claims.without("iss"),
		"issuer null":           a.claims.with("iss", nil),
		"exp missing":           a.claims.without("exp"),
		"exp null":              a.claims.with("exp", nil),
		"exp zero":              a.claims.with("exp", 0),
		"exp text":              a.claims.with("exp", "9999999999"),
		"exp fraction":          a.claims.with("exp", float64(now)+0.5),
		"exp negative":          a.claims.with("exp", -1),
		"exp huge":              a.claims.with("exp", int64(1)<<62),
		"exp beyond 64 bits":    strings.Replace(body, `"exp":`, `"exp":99999999999999999999`, 1),
		"exp and iat overflow":  lifetime(-1<<62, 1<<62),
		"exp 1e400":             strings.Replace(body, `"exp":`, `"exp":1e400,"e":`, 1),
		"nbf missing":           a.claims.without("nbf"),
		"iat missing":           a.claims.without("iat"),
		"jti missing":           a.claims.without("jti"),
		"expired":               lifetime(now-400, now-61),
		"expired long ago":      lifetime(1, 300),
		"not yet valid":         lifetime(now+70, now+300),
		"nbf in the future":     a.claims.with("nbf", now+70),
		"iat in the future":     a.claims.with("iat", now+70),
		"lives too long":        lifetime(now, now+int64(MaxTTL/time.Second)+1),
		"old and lives longer":  lifetime(now-int64(MaxTTL/time.Second), now+300),
		"nbf before iat":        a.claims.with("nbf", now-int64(MaxTTL/time.Second)),
		"account without name":  a.claims.with("sub", ""),
		"name without account":  a.claims.without("uid"),
		"negative account":      a.claims.with("uid", -7),
		"account text":          a.claims.with("uid", "7"),
		"access an object":      a.claims.with("access", members{"type": "repository"}),
		"access a text":         a.claims.with("access", "repository:a:pull"),
		"actions a text":        a.claims.with("access", []members{{"type": "repository", "name": "a", "actions": "pull"}}),
		"name an object":        a.claims.with("access", []members{{"type": "repository", "name": members{}, "actions": []string{"pull"}}}),
		"nested access":         a.claims.with("access", [][]Access{{repository("a", "pull")}}),
		"deep":                  a.claims.with("x", deep(1500)),
		"too deep":              `{"x":` + strings.Repeat("[", 11000),
		"sub twice":             strings.Replace(body, `"sub"`, `"sub":"root","sub"`, 1),
		"exp twice":             strings.Replace(body, `"exp"`, `"exp":1,"exp"`, 1),
		"sub in another case":   strings.Replace(body, `"sub"`, `"SUB":"root","sub"`, 1),
		"access in capitals":    strings.Replace(body, `"access"`, `"Access"`, 1),
		"actions twice":         strings.Replace(body, `"actions"`, `"actions":["delete"],"actions"`, 1),
		"unknown members twice": strings.Replace(body, `"sub"`, `"x":{"y":1,"y":2},"sub"`, 1),
		"escaped twin":          strings.Replace(body, `"sub"`, `"s\u0075b":"root","sub"`, 1),
		"folded twin":           strings.Replace(body, `"sub"`, `"ſub":"root","sub"`, 1),
		"array":                 `[]`,
		"null":                  `null`,
		"empty object":          `{}`,
		"empty":                 ``,
		"text after":            body + `{}`,
	} {
		if claims == any(body) {
			t.Fatalf("%s changes nothing", name)
		}
		raw := sign(t, a.header, claims, by(a.key.private))
		if name == "deep" {
			// An unknown member is allowed, so that later versions may add some.
			if _, err := a.k.Verify(t.Context(), raw); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		refused(t, a.k, name, raw)
	}
	_, err := a.k.Verify(t.Context(), sign(t, a.header, lifetime(now-400, now-61), by(a.key.private)))
	if !errors.Is(err, ErrExpired) {
		t.Errorf("an expired token: %v", err)
	}
}

func deep(n int) any {
	v := any(1)
	for range n {
		v = members{"x": v}
	}
	return v
}

// FuzzVerify checks that no text but a token that was issued is accepted, whatever its parts.
func FuzzVerify(f *testing.F) {
	k := newKeys(f, dbtest.New(f), nil)
	raw := issue(f, k, example())
	for i := range 3 {
		f.Add(i, string(part(f, raw, i)), true)
		f.Add(i, strings.Split(raw, ".")[i], false)
	}
	f.Add(0, `{"alg":"none"}`, true)
	f.Fuzz(func(t *testing.T, i int, text string, encode bool) {
		parts := strings.Split(raw, ".")
		if encode {
			text = base64.RawURLEncoding.EncodeToString([]byte(text))
		}
		parts[min(max(i, 0), 2)] = text
		forged := strings.Join(parts, ".")
		c, err := k.Verify(t.Context(), forged)
		if (err == nil) != (forged == raw) || (c != nil) != (err == nil) {
			t.Fatalf("%q: got %v, %v", forged, c, err)
		}
		if err := checkMembers([]byte(text)); err == nil && text == "{" {
			t.Fatal("half an object is accepted")
		}
	})
}
