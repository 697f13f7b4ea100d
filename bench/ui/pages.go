package ui

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// place are the values that stand in the pages' paths.
type place struct{ image, index, layer, shared, policy string }

// pages returns the paths of all pages of the UI, with values that the database has. The pages of
// a namespace are those of the given one, and the pages of a repository those of the large one.
func pages(ctx context.Context, conn *pgx.Conn, namespace string) ([]string, error) {
	var p place
	err := conn.QueryRow(ctx, `
		SELECT
			(SELECT encode(sha256(m.payload), 'hex') FROM tags t JOIN manifests m ON m.id = t.manifest_id JOIN repositories r ON r.id = t.repository_id
				WHERE r.path LIKE '%/large' AND t.name = 'build-000001'),
			(SELECT encode(sha256(m.payload), 'hex') FROM tags t JOIN manifests m ON m.id = t.manifest_id JOIN repositories r ON r.id = t.repository_id
				WHERE r.path LIKE '%/large' AND t.name = 'release-000001'),
			(SELECT substr(encode(digest, 'hex'), 3) FROM blobs WHERE storage_key LIKE 'bench/layer/%' LIMIT 1),
			encode(sha256('shared 5'), 'hex'),
			COALESCE((SELECT p.uuid FROM namespaceautoprunepolicy p JOIN top_level_namespaces n ON n.id = p.namespace_id WHERE n.name = $1 LIMIT 1), 'none')`,
		namespace).Scan(&p.image, &p.index, &p.layer, &p.shared, &p.policy)
	if err != nil {
		return nil, fmt.Errorf("looking for content: %w", err)
	}
	const large = "team-0000/large"
	var list []string
	add := func(base string, more ...string) {
		for _, m := range more {
			list = append(list, base+m)
		}
	}
	add("/ui/", "", "repositories", "namespaces", "audit", "gc", "usage", "gc/explain", "runs", "holds", "trash", "system", "defaults", "users", "account")
	add("/ui/search", "", "?q=app-05000", "?q=v1.3", "?q=build-0001", "?q=0001", "?q=nothing-matches", "?q="+p.image[:8], "?q="+p.layer[:12])
	add("/ui/repositories", "?q=app-05000", "?q=nothing-matches", "?q=app", "?q=large", "?sort=-name", "?sort=created", "?sort=-created",
		"?visibility=public", "?starred=true", "?namespace="+namespace)
	add("/ui/namespaces", "?q=nothing-matches", "?q=0199")
	add("/ui/namespaces/"+namespace, "", "/-/policies", "/-/policies/new", "/-/policies/"+p.policy, "/-/teams", "/-/teams/crew-1", "/-/robots", "/-/robots/robot-1", "/-/webhooks", "/-/settings", "/-/usage")
	add("/ui/namespaces/team-0000/-/webhooks/00000000-0000-4000-9000-000000000002", "", "?state=delivered", "?state=given_up", "?state=waiting")
	add("/ui/repositories/"+large, "", "?sort=pushed", "?sort=name", "?sort=-name", "?sort=size", "?sort=last_pulled", "?sort=pull_count",
		"?q=nothing-matches", "?q=build", "?q=build-050000", "?q=000001", "?q=nothing-matches&sort=name",
		"?unused=7d", "?unused=90d", "?unused=1y", "?unused=90d&sort=name", "?unused=90d&q=nothing-matches",
		"/-/untagged", "/-/untagged?show=all", "/-/history", "/-/history?q=nothing-matches", "/-/policies", "/-/settings", "/-/tags/build-000001", "/-/tags/release-000001",
		"/-/manifests/sha256:"+p.image, "/-/manifests/sha256:"+p.image+"/raw", "/-/manifests/sha256:"+p.index)
	add("/ui/audit", "?namespace="+namespace, "?repository="+large, "?kind=pull_repo", "?kind=autoprune_tag_delete", "?kind=delete_repo", "?actor=nobody", "?actor=team-7%2Bci")
	add("/ui/gc/explain?digest=sha256:", p.layer, p.shared, p.image+"&repository="+large)
	add("/ui/runs", "?namespace="+namespace, "/00000000-0000-4000-9000-000000000001")
	add("/ui/holds", "?namespace="+namespace, "/cluster-1")
	add("/ui/trash", "?namespace="+namespace)
	add("/ui/users", "?q=nothing-matches", "?q=person-1")
	return list, nil
}
