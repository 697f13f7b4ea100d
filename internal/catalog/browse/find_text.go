package browse

import (
	"encoding/hex"
	"regexp"
	"strings"

	"github.com/purser-registry/purser/internal/oci"
)

// Wanted is what somebody searches for. Its texts are taken literally: no character is an operator.
type Wanted struct {
	// Name is a part of the name of a namespace or a repository, and of a tag in any repository.
	Name string
	// Repository is a part of the name of the repository in which Tag or Digest is searched for. "": any.
	Repository string
	// Tag is a part of a tag's name, for the text repository:tag.
	Tag string
	// Digest is a digest or its beginning; the zero value is none.
	Digest DigestBeginning
}

// DigestBeginning is the beginning of a digest, as its hexadecimal digits. If nothing says with which
// algorithm, up to 64 digits are those of a sha256, as commands and pages abbreviate digests.
type DigestBeginning struct {
	algorithm oci.Algorithm
	digits    string // in lower case; "": no digest
}

// fewestDigits is how many digits a digest's beginning has at least if nothing says where to search.
const fewestDigits = 6

var (
	digestText = regexp.MustCompile(`^(?:(sha256|sha512):)?([0-9a-f]{1,128})…?$`)
	schemeText = regexp.MustCompile(`^(?i:https?|docker|oci)://`)
)

// ParseWanted reads what somebody has typed or pasted into the search: a part of a name, a digest or
// the first digits of it, repository:tag, or repository@digest. A reference may begin with the
// registry's own host, with which the client reaches it.
func ParseWanted(text, host string) (w Wanted) {
	text = schemeText.ReplaceAllString(strings.TrimSpace(text), "")
	if n := len(host); n > 0 && len(text) > n && text[n] == '/' && strings.EqualFold(text[:n], host) {
		text = text[n+1:]
	}
	if d, ok := parseBeginning(text, fewestDigits); ok {
		w.Digest = d
		if !strings.ContainsAny(text, ":…") {
			w.Name = text // six hexadecimal digits may be a name, too
		}
		return w
	}
	if repository, digest, ok := strings.Cut(text, "@"); ok {
		w.Repository, _ = cutTag(repository)
		if w.Digest, ok = parseBeginning(digest, 1); ok {
			return w
		}
		return Wanted{Name: text}
	}
	if repository, tag := cutTag(text); tag != "" {
		return Wanted{Repository: strings.ToLower(repository), Tag: tag}
	}
	return Wanted{Name: strings.TrimRight(text, ":")}
}

// cutTag splits repository:tag. The tag is "" if there is none.
func cutTag(text string) (repository, tag string) {
	if i := strings.LastIndexByte(text, ':'); i > strings.LastIndexByte(text, '/') {
		return text[:i], text[i+1:]
	}
	return text, ""
}

func parseBeginning(text string, fewest int) (d DigestBeginning, ok bool) {
	m := digestText.FindStringSubmatch(strings.ToLower(text))
	if m == nil || len(m[2]) < fewest {
		return d, false
	}
	d.algorithm, d.digits = oci.SHA256, m[2]
	if m[1] == "sha512" || m[1] == "" && len(m[2]) > 2*oci.SHA256.Size() {
		d.algorithm = oci.SHA512
	}
	return d, len(d.digits) <= 2*d.algorithm.Size()
}

// bounds returns the lowest and the highest digest that begins so, as [oci.Digest.Bytes] returns them.
func (d DigestBeginning) bounds() (lowest, highest []byte, err error) {
	missing := 2*d.algorithm.Size() - len(d.digits)
	if lowest, err = hex.DecodeString(d.digits + strings.Repeat("0", missing)); err != nil {
		return nil, nil, err
	}
	if highest, err = hex.DecodeString(d.digits + strings.Repeat("f", missing)); err != nil {
		return nil, nil, err
	}
	first := []byte{byte(d.algorithm)}
	return append(first, lowest...), append(first[:1:1], highest...), nil
}
