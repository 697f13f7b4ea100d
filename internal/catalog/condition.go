package catalog

import (
	"context"
	"fmt"
	"net/http"

	"github.com/purser-registry/purser/internal/oci"
)

// Condition is the precondition of a request (If-Match, If-None-Match; RFC 9110, sections
// 13.1.1 and 13.1.2), either on the tag that a write moves or deletes or, if Tag is "", on the
// manifest that it stores by digest. The zero value is no precondition. The statement that
// writes also checks the condition, after the write has locked its rows. So if several clients
// at once move a tag on condition that it still points to a certain digest, only one of them
// succeeds.
type Condition struct {
	Tag                string      // "": the condition is about the manifest
	IfMatch, IfNoMatch *Validators // nil: no such condition
}

// Validators lists the digests that an If-Match or If-None-Match header names.
type Validators struct {
	Any     bool // "*": any manifest
	Digests []oci.Digest
}

// arg returns the validators as an argument of the SQL function purser_condition_holds: NULL
// if the request has no such header, else an array of digests. An empty element stands for
// "*".
func (v *Validators) arg() [][]byte {
	if v == nil {
		return nil
	}
	list := make([][]byte, 0, len(v.Digests)+1)
	for _, d := range v.Digests {
		list = append(list, d.Bytes())
	}
	if v.Any {
		list = append(list, []byte{})
	}
	return list
}

// conditionFailed returns the client's error for a write whose condition didn't hold. If the
// condition is on a tag, the error names the manifest to which the tag points now. OFFSET 0 in
// its SQL makes PostgreSQL look rows up by an index: see "Plans" in package db.
func (c *Catalog) conditionFailed(ctx context.Context, path string, condition Condition, d oci.Digest) error {
	if condition.Tag == "" {
		is := "is not in"
		if condition.IfNoMatch != nil {
			is = "is already in"
		}
		return refused("manifest %s %s repository %s", d, is, path).WithDetail(map[string]string{"name": path, "digest": d.String()})
	}
	var raw []byte
	err := c.db.Pool.QueryRow(ctx, `
		SELECT m.digest FROM live_repositories r
		CROSS JOIN LATERAL (
			SELECT manifest_id FROM tags
			WHERE top_level_namespace_id = r.top_level_namespace_id AND repository_id = r.id AND name = $2 OFFSET 0) t
		CROSS JOIN LATERAL (
			SELECT digest FROM manifests
			WHERE top_level_namespace_id = r.top_level_namespace_id AND repository_id = r.id AND id = t.manifest_id OFFSET 0) m
		WHERE r.path = $1`, path, condition.Tag).Scan(&raw)
	detail := map[string]string{"name": path, "tag": condition.Tag}
	switch {
	case isNoRows(err):
		return refused("tag %s of %s does not exist", condition.Tag, path).WithDetail(detail)
	case err != nil:
		return fmt.Errorf("looking for tag %s of %s: %w", condition.Tag, path, err)
	}
	now, err := oci.DigestFromBytes(raw)
	if err != nil {
		return err
	}
	detail["digest"] = now.String()
	return refused("tag %s of %s points to %s now", condition.Tag, path, now).WithDetail(detail)
}

// refused returns the client's error for a failed precondition, with status 412. Its code is
// DENIED, as the OCI specification has no code for a failed precondition.
func refused(format string, args ...any) *oci.Error {
	return oci.Errorf(oci.Denied, "nothing was changed, since the condition of the request (If-Match, If-None-Match) doesn't hold: "+format, args...).
		WithStatus(http.StatusPreconditionFailed)
}
