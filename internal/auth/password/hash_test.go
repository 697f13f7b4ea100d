package password

import (
	"strings"
	"testing"
)

// Hashes of other programs: of argon2's reference implementation (test.c), of Openwall's
// crypt_blowfish (wrapper.c), and of a password of more than 72 bytes.
const (
	referenceArgon2 = "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc" // password
	openwallBcrypt  = "$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW"                           // U*U
	openwallLong    = "$2a$05$abcdefghijklmnopqrstuu5s2v8.iXieOjg/.AySBTTZIIVFJeBui"
)

func TestCompareWithHashesOfOtherPrograms(t *testing.T) {
	t.Parallel()
	long := "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	for _, tt := range []struct {
		name, password, hash string
		want                 bool
	}{
		{"argon2id", "password", referenceArgon2, true},
		{"argon2id, wrong", "Password", referenceArgon2, false},
		{"2a", "U*U", openwallBcrypt, true},
		{"2b", "U*U", "$2b" + openwallBcrypt[3:], true},
		{"2y", "U*U", "$2y" + openwallBcrypt[3:], true},
		{"2y, wrong", "U*V", "$2y" + openwallBcrypt[3:], false},
		{"72 bytes", long, openwallLong, true},
		{"more than 72 bytes", long + "chars after 72 are ignored", openwallLong, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if ok, err := compare(tt.password, tt.hash); err != nil || ok != tt.want {
				t.Errorf("%v, %v, want %v", ok, err, tt.want)
			}
		})
	}
}

func TestCompareRefusesOtherHashes(t *testing.T) {
	t.Parallel()
	salt, key := "c29tZXNhbHQ", "CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc"
	for name, hash := range map[string]string{
		"none":              "",
		"text":              "password",
		"memory of 4 TiB":   "$argon2id$v=19$m=4294967295,t=1,p=1$" + salt + "$" + key,
		"memory of 65 MiB":  "$argon2id$v=19$m=66560,t=1,p=1$" + salt + "$" + key,
		"too little memory": "$argon2id$v=19$m=7,t=1,p=1$" + salt + "$" + key,
		"more than 32 bits": "$argon2id$v=19$m=4294986752,t=2,p=1$" + salt + "$" + key,
		"many passes":       "$argon2id$v=19$m=19456,t=9,p=1$" + salt + "$" + key,
		"no pass":           "$argon2id$v=19$m=19456,t=0,p=1$" + salt + "$" + key,
		"many threads":      "$argon2id$v=19$m=19456,t=2,p=255$" + salt + "$" + key,
		"257 threads":       "$argon2id$v=19$m=19456,t=2,p=257$" + salt + "$" + key,
		"no thread":         "$argon2id$v=19$m=19456,t=2,p=0$" + salt + "$" + key,
		"leading zero":      "$argon2id$v=19$m=019456,t=2,p=1$" + salt + "$" + key,
		"sign":              "$argon2id$v=19$m=+19456,t=2,p=1$" + salt + "$" + key,
		"short salt":        "$argon2id$v=19$m=19456,t=2,p=1$AAAA$" + key,
		"no salt":           "$argon2id$v=19$m=19456,t=2,p=1$$" + key,
		"long salt":         "$argon2id$v=19$m=19456,t=2,p=1$" + strings.Repeat("A", 88) + "$" + key,
		"short key":         "$argon2id$v=19$m=19456,t=2,p=1$" + salt + "$AAAA",
		"long key":          "$argon2id$v=19$m=19456,t=2,p=1$" + salt + "$" + strings.Repeat("A", 1<<20),
		"line break":        "$argon2id$v=19$m=19456,t=2,p=1$" + salt + "\n$" + key,
		"padding":           "$argon2id$v=19$m=19456,t=2,p=1$" + salt + "==$" + key,
		"other last bits":   "$argon2id$v=19$m=19456,t=2,p=1$" + salt + "$" + key[:len(key)-1] + "d",
		"one more field":    "$argon2id$v=19$m=19456,t=2,p=1$" + salt + "$" + key + "$",
		"argon2i":           "$argon2i$v=19$m=19456,t=2,p=1$" + salt + "$" + key,
		"older version":     "$argon2id$v=16$m=19456,t=2,p=1$" + salt + "$" + key,
		"2x":                "$2x" + openwallBcrypt[3:],
		"2":                 "$2$" + openwallBcrypt[4:],
		"cost 16":           "$2a$16" + openwallBcrypt[6:],
		"cost 31":           "$2a$31" + openwallBcrypt[6:],
		"cost 3":            "$2a$03" + openwallBcrypt[6:],
		"cut bcrypt":        openwallBcrypt[:59],
		"long bcrypt":       openwallBcrypt + "A",
		"MD5":               "$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/",
	} {
		if ok, err := compare("password", hash); ok || err == nil {
			t.Errorf("%s: %v, %v, want an error", name, ok, err)
		} else if len(hash) > 8 && strings.Contains(err.Error(), hash[8:]) {
			t.Errorf("%s: the error has the hash: %v", name, err)
		}
	}
}

func TestNeedsRehash(t *testing.T) {
	t.Parallel()
	for hash, want := range map[string]bool{
		"":                                      false,
		newArgon2("correct").String():           false,
		dummy:                                   false,
		referenceArgon2:                         true,
		openwallBcrypt:                          true,
		"something":                             true,
		strings.Replace(dummy, "t=2", "t=3", 1): true,
	} {
		if got := NeedsRehash(hash); got != want {
			t.Errorf("NeedsRehash(%q) = %v", hash, got)
		}
	}
}

// FuzzArgon2 checks that a text which is read as a hash is the only text of that hash, and that
// its parameters are in bounds.
func FuzzArgon2(f *testing.F) {
	f.Add(dummy)
	f.Add(referenceArgon2)
	f.Add("$argon2id$v=19$m=4294967295,t=1,p=255$$")
	f.Fuzz(func(t *testing.T, text string) {
		h, ok := parseArgon2(text)
		if !ok {
			return
		}
		if h.String() != text {
			t.Errorf("%q is read as %q", text, h)
		}
		if h.memoryKiB > 64<<10 || h.memoryKiB < 8*uint32(h.threads) || h.passes < 1 || h.passes > 8 || h.threads < 1 || h.threads > 4 {
			t.Errorf("parameters are out of bounds: %q", text)
		}
		if len(h.salt) < 8 || len(h.salt) > 64 || len(h.key) < 16 || len(h.key) > 64 {
			t.Errorf("%d bytes of salt, %d of key", len(h.salt), len(h.key))
		}
	})
}
