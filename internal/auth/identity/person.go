package identity

import (
	"slices"
	"strings"
)

// find returns a claim of the ID token, or else of the userinfo endpoint, and the claims among
// which it was.
func (w person) find(name string) (value any, among map[string]any, ok bool) {
	for _, claims := range []map[string]any{w.id, w.info} {
		if value, ok := lookup(claims, name); ok {
			return value, claims, true
		}
	}
	return nil, nil, false
}

// identity makes the identity from what the provider says. With an error it returns the name, if
// that is valid.
func (p *Provider) identity(w person) (Identity, error) {
	i := Identity{Source: SourceOIDC, Subject: w.subject}
	var err error
	if i.Name, err = p.name(w); err != nil {
		return Identity{}, err
	}
	if value, among, ok := w.find(p.o.EmailClaim); ok {
		// Some providers write the boolean as text, some leave it out.
		if verified, known := text(among["email_verified"]); !known || verified == "true" {
			i.Email = email(value)
		}
	}
	if i.Groups, err = p.groups(w); err != nil {
		return i, err
	}
	in := func(group string) bool { return slices.Contains(i.Groups, group) }
	outside := len(p.o.RequiredGroups) > 0 && !slices.ContainsFunc(p.o.RequiredGroups, in)
	p.watch.met(i, outside)
	if outside {
		return i, refused("%s is in none of the groups that may log in; ask an administrator of the registry", i.Name)
	}
	i.Superuser = slices.ContainsFunc(p.o.AdminGroups, in)
	return i, nil
}

// name returns the name of the person's account.
func (p *Provider) name(w person) (string, error) {
	value, among, ok := w.find(p.o.UsernameClaim)
	if !ok {
		return "", refused("the provider's tokens have no claim %q, from which the account's name is taken; add it at the provider, or choose another claim", p.o.UsernameClaim)
	}
	given, ok := text(value)
	// ToLower maps some letters beyond ASCII to ASCII, such as the sign for Kelvin to k. Then
	// two different names would be one account.
	name := strings.ToLower(given)
	if !ok || strings.ContainsFunc(given, func(r rune) bool { return r >= 0x80 }) || !accountName.MatchString(name) {
		return "", refused("the claim %q is %s, which can't be the name of an account: a name has 1 to 128 letters, digits and . _ @ -, and begins with a letter or a digit", p.o.UsernameClaim, excerpt(given))
	}
	// Some providers leave email_verified out when it is false.
	if verified, _ := text(among["email_verified"]); p.o.UsernameClaim == p.o.EmailClaim && verified != "true" {
		return "", refused("the account's name would be the email address %s, but the provider doesn't say by email_verified that it is the person's own; verify it there, or take names from another claim", excerpt(given))
	}
	return name, nil
}

// email returns an email address, or "" if the value isn't one.
func email(value any) string {
	address, ok := value.(string)
	if !ok || len(address) > 254 || !strings.Contains(address, "@") || strings.ContainsFunc(address, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return ""
	}
	return address
}

// groups returns the person's groups, sorted.
func (p *Provider) groups(w person) ([]string, error) {
	value, _, ok := w.find(p.o.GroupsClaim)
	if !ok {
		// Entra ID replaces a long list of groups by a reference (OpenID Connect Core 1.0,
		// section 5.6.2). The person would seem to be in no group.
		if sources, _ := w.id["_claim_names"].(map[string]any); sources[p.o.GroupsClaim] != nil {
			return nil, refused("the provider leaves out the claim %q because the person is in too many groups; let it send only the groups that are assigned to this application", p.o.GroupsClaim)
		}
		return nil, nil
	}
	if list, ok := value.([]any); ok { // some providers leave a null for a group that is gone
		value = slices.DeleteFunc(slices.Clone(list), func(element any) bool { return element == nil })
	}
	groups, err := texts(value)
	if err != nil {
		return nil, refused("the claim %q can't be read: %v", p.o.GroupsClaim, err)
	}
	slices.Sort(groups)
	return slices.DeleteFunc(slices.Compact(groups), func(g string) bool { return g == "" }), nil
}
