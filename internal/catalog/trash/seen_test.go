package trash_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/catalog/trash"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// TestCountsWithoutTrash: the namespaces acme and twin have the same repositories, but acme has
// others in the trash. Every viewer sees the same of both, and nothing of the namespace void, whose
// repositories are all in the trash, unless he has a role in it.
func TestCountsWithoutTrash(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := withTrash(t, dbtest.DSN(t))
	for _, path := range []string{"acme/app", "twin/app", "acme/public", "acme/private", "acme/unset", "void/public", "void/private", "void/unset"} {
		b.Fill(t, path)
	}
	b.Exec(t, "UPDATE repositories SET is_public = path LIKE '%public' WHERE path NOT LIKE '%unset'")
	var deleted []int64
	for _, path := range []string{"acme/public", "acme/private", "acme/unset", "void/public", "void/private", "void/unset"} {
		var id int64
		if err := b.DB.Pool.QueryRow(ctx, "SELECT id FROM repositories WHERE path = $1", path).Scan(&id); err != nil {
			t.Fatal(err)
		}
		deleted = append(deleted, id)
		if err := b.Trash.DeleteRepository(ctx, path); err != nil {
			t.Fatal(err)
		}
	}
	ids := []int64{int64(b.Count(t, "SELECT id FROM top_level_namespaces WHERE name = 'acme'")), int64(b.Count(t, "SELECT id FROM top_level_namespaces WHERE name = 'twin'"))}
	paths := []string{"^(#[0-9]+/)?(acme|twin|void)/"}
	for i, v := range []browse.Viewer{
		browse.Everyone,
		{All: true, Patterns: paths},
		{Namespaces: ids},
		{Namespaces: ids, Patterns: paths},
		{Public: true},
		{Public: true, PublicByDefault: true},
		{Public: true, PublicByDefault: true, Patterns: paths},
		{Repositories: deleted},
		{Repositories: deleted, Public: true, Namespaces: ids},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			see := func(name string) string {
				d, err := browse.New(b.Catalog).DescribeNamespace(ctx, v, name, 0)
				infos, _, err2 := browse.New(b.Catalog).Namespaces(ctx, v, browse.NameFilter{Prefix: name}, "", 10)
				list, _, err3 := browse.New(b.Catalog).Repositories(ctx, v, browse.RepositoryQuery{Namespace: name, Limit: 10})
				byTime, _, err4 := browse.New(b.Catalog).Repositories(ctx, v, browse.RepositoryQuery{Namespace: name, Limit: 10, ByCreation: true})
				own := int64(-1)
				if d.Size.OwnBytes != nil {
					own = *d.Size.OwnBytes
				}
				text := fmt.Sprintf("%d repositories, %d blobs, %d bytes, %d own %v %v %v %v %d %d", d.Repositories, d.Size.Blobs, d.Size.Bytes, own, oci.CodeOf(err), err2, oci.CodeOf(err3), oci.CodeOf(err4), len(list), len(byTime))
				for _, n := range infos {
					text += fmt.Sprintf(" %s %+v", n.Name, n.Repositories)
				}
				return strings.ReplaceAll(text, name, "NAME")
			}
			if acme, twin := see("acme"), see("twin"); acme != twin {
				t.Errorf("%s\nwant\n%s", acme, twin)
			}
			if void, none := see("void"), see("none"); void != none && !v.Unlimited() || strings.Contains(void, "3 rep") {
				t.Errorf("%s\nwant\n%s", void, none)
			}
			all, _, err := browse.New(b.Catalog).RepositoryPaths(ctx, v, "", 100)
			if err != nil || strings.Contains(strings.Join(all, " "), "#") || strings.Contains(strings.Join(all, " "), "un") {
				t.Errorf("%v, %v", all, err)
			}
		})
	}
	for _, v := range []browse.Viewer{browse.Everyone, {Repositories: deleted}, {All: true, Patterns: paths}} {
		list, err := browse.New(b.Catalog).Sources(ctx, v, oci.Compute(oci.SHA256, []byte("layer of acme/unset")), 10)
		if err != nil || len(list) != 0 {
			t.Errorf("sources of a blob in the trash: %v, %v", list, err)
		}
	}
	if _, err := b.Trash.Restore(ctx, "namespace-999", ""); oci.CodeOf(err) != oci.NameUnknown {
		t.Error(err)
	}
}

// TestRestoreLengths: a namespace can't be restored under a name with which a repository's path
// would be longer than clients can ask for.
func TestRestoreLengths(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := withTrash(t, dbtest.DSN(t))
	long := "acme/" + strings.Repeat("x", oci.MaxNameLength-len("acme/"))
	b.Put(t, long, catalogtest.Image(t, b.Push(t, long, "config"), nil, nil), "v1")
	if err := b.Trash.DeleteRepository(ctx, long); err != nil {
		t.Fatal(err)
	}
	b.Put(t, long, catalogtest.Image(t, b.Push(t, long, "config"), nil, nil), "v2")
	id, err := b.Trash.RemoveNamespace(ctx, "acme")
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Trash.Restore(ctx, id, "acme2")
	catalogtest.WantCode(t, err, oci.Unsupported)
	if name, err := b.Trash.Restore(ctx, id, "zoo"); err != nil || name != "zoo" {
		t.Fatal(name, err)
	}
	b.Whole(t, "zoo"+long[len("acme"):], "v2")
}

// TestDeletedTwice: a namespace that is deleted, made again and deleted again is in the trash twice,
// and both come back.
func TestDeletedTwice(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := withTrash(t, dbtest.DSN(t))
	var ids []string
	for _, tag := range []string{"one", "two"} {
		b.Put(t, "acme/app", catalogtest.Image(t, b.Push(t, "acme/app", "config"), nil, nil), tag)
		b.Exec(t, "INSERT INTO accounts (name, kind, top_level_namespace_id) SELECT 'acme+ci', 'robot', id FROM live_namespaces WHERE name = 'acme'")
		id, err := b.Trash.RemoveNamespace(ctx, "acme")
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	_, err := b.Trash.RemoveNamespace(ctx, "acme")
	catalogtest.WantCode(t, err, oci.NameUnknown)
	for i, as := range []string{"", "acme2"} {
		if _, err := b.Trash.Restore(ctx, ids[i], as); err != nil {
			t.Fatal(err)
		}
	}
	b.Whole(t, "acme/app", "one")
	b.Whole(t, "acme2/app", "two")
	if n := b.Count(t, "SELECT count(*) FROM accounts WHERE name IN ('acme+ci', 'acme2+ci') AND deleted_name IS NULL"); n != 2 {
		t.Errorf("%d robots, want 2", n)
	}
	if err := b.Trash.DeleteNamespace(ctx, "acme2", trash.PurgeAtOnce); err != nil {
		t.Fatal(err)
	}
	b.Whole(t, "acme/app", "one")
}

// TestTrashLateWrites: a write has found the repository, and waits for its rows or for those of its
// namespace while a deletion puts them into the trash. Then the write must not change what is in the
// trash: it is refused, or done in a new repository.
func TestTrashLateWrites(t *testing.T) {
	t.Parallel()
	const rows = "SELECT (SELECT count(*) FROM tags) * 10000 + (SELECT count(*) FROM manifests) * 100 + (SELECT count(*) FROM repository_blobs)"
	for name, deletion := range map[string]string{"repository": catalogtest.TrashRepository, "namespace": catalogtest.TrashNamespace} {
		for what, write := range map[string]func(ctx context.Context, b bundle, image []byte) error{
			"put": func(ctx context.Context, b bundle, image []byte) error {
				_, err := b.TryPut(ctx, "acme/app", image, "late")
				return err
			},
			"commit": func(ctx context.Context, b bundle, _ []byte) error {
				_, err := b.TryPush(ctx, "acme/app", "late content")
				return err
			},
			"delete tag":        func(ctx context.Context, b bundle, _ []byte) error { return b.DeleteTag(ctx, "acme/app", "v1") },
			"delete repository": func(ctx context.Context, b bundle, _ []byte) error { return b.Trash.DeleteRepository(ctx, "acme/app") },
			"delete namespace":  func(ctx context.Context, b bundle, _ []byte) error { return b.Trash.DeleteNamespace(ctx, "acme") },
		} {
			t.Run(name+" "+what, func(t *testing.T) {
				t.Parallel()
				ctx := t.Context()
				b := withTrash(t, dbtest.DSN(t))
				image := catalogtest.Image(t, b.Push(t, "acme/app", "config"), nil, nil)
				b.Put(t, "acme/app", image, "v1")
				before := b.Count(t, rows)
				deletes, watch := b.Session(t), b.Session(t)
				deletes.Exec(t, "BEGIN")
				deletes.Exec(t, deletion)
				done := catalogtest.Later(func() error { return write(ctx, b, image) })
				// The deletions of repositories and of namespaces lock one row each.
				blocks := !strings.HasPrefix(what, "delete ") || what == "delete tag" || what == "delete "+name
				if blocks {
					deletes.Blocks(t, watch, 1)
				} else if err := catalogtest.Soon(t, what, done); err != nil {
					t.Fatal(err)
				}
				deletes.Exec(t, "COMMIT")
				if blocks {
					err := catalogtest.Soon(t, what, done)
					if err != nil && oci.CodeOf(err) == "" {
						t.Errorf("%s: %v", what, err)
					}
				}
				b.Exec(t, "DELETE FROM repositories r WHERE deleted_at IS NULL AND EXISTS (SELECT FROM live_namespaces WHERE id = top_level_namespace_id)")
				b.Exec(t, "DELETE FROM tags t WHERE NOT EXISTS (SELECT FROM repositories WHERE id = t.repository_id)")
				b.Exec(t, "DELETE FROM manifests t WHERE NOT EXISTS (SELECT FROM repositories WHERE id = t.repository_id)")
				b.Exec(t, "DELETE FROM repository_blobs t WHERE NOT EXISTS (SELECT FROM repositories WHERE id = t.repository_id)")
				if after := b.Count(t, rows); after != before {
					t.Errorf("%s: rows %d, before the deletion they were %d", what, after, before)
				}
			})
		}
	}
}
