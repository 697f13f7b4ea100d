package command

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/policy"
)

// configVariable is the environment variable that names the configuration file. The flag
// --config overrides it. If it is set and empty, there is no file.
const configVariable = "PURSER_CONFIG"

// MachineConfig is the configuration file of the machine, which the Debian package installs. It is
// read if neither --config nor PURSER_CONFIG says anything, so that a command has the same
// configuration as the service. A file in the working directory isn't looked for: it could be
// anybody's.
const MachineConfig = "/etc/purser/config.yaml"

// Source reads the configuration from the configuration file, the environment and the
// flags.
type Source struct {
	Environ []string
	// Machine is MachineConfig, or "" for a test on a machine that may have one.
	Machine  string
	file     string
	replaced []replacement
	told     bool
}

// replacement is the value of a setting that the process knows by itself.
type replacement struct{ key, value, from string }

// Replace makes Load take `value` for the setting `key`, whatever the file, the environment and
// the flags say. `from` says in errors where the value comes from.
func (s *Source) Replace(key, value, from string) {
	s.replaced = append(s.replaced, replacement{key, value, from})
}

// clientVariables are environment variables that Source.Client reads. They aren't settings.
var clientVariables = []string{api.ServerVariable, api.TokenVariable, api.TokenFileVariable}

// settingFlags are the command-line flags that set a setting; `key` is the setting's key.
var settingFlags = []struct{ name, key string }{
	{"data-dir", "data_dir"},
	{"addr", "http.addr"},
	{"debug-addr", "http.debug_addr"},
	{"profile-addr", "http.profile_addr"},
	{"allow-anonymous", "http.allow_anonymous"},
}

// addFlags adds the flags that all commands have.
func (s *Source) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&s.file, "config", "", "read settings from this YAML `FILE` (default: $"+configVariable+", else "+MachineConfig+" if it exists)")
	flags.String("data-dir", "", "keep data in this `DIR`ectory")
}

// AddServeFlags adds the flags of the serve command.
func AddServeFlags(flags *pflag.FlagSet) {
	flags.String("addr", "", "serve the registry on `HOST:PORT` (default 127.0.0.1:5000)")
	flags.String("debug-addr", "", "serve metrics and health on `HOST:PORT`, or \"off\" (default 127.0.0.1:5001)")
	flags.String("profile-addr", "", "serve profiles on `HOST:PORT`, or \"off\" (default --debug-addr where that is on loopback)")
	flags.Bool("allow-anonymous", false, "allow addresses that other machines reach although nobody needs to log in")
}

// configFile returns the path of the configuration file, "" if there is none, and what names it.
func (s *Source) configFile(cmd *cobra.Command) (path, by string) {
	if cmd.Flags().Changed("config") {
		return s.file, "--config"
	}
	if i := slices.IndexFunc(s.Environ, isConfigVariable); i >= 0 {
		_, path, _ = strings.Cut(s.Environ[i], "=")
		return path, configVariable
	}
	if s.Machine == "" {
		return "", ""
	}
	// A file that can't be looked at may be there, and so may the target of a link: reading it is tried,
	// and fails.
	if _, err := os.Lstat(s.Machine); errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return "", ""
	}
	return s.Machine, "the machine's"
}

func isConfigVariable(entry string) bool { return strings.HasPrefix(entry, configVariable+"=") }

// Used says in a few words which configuration Load reads.
func (s *Source) Used(cmd *cobra.Command) string {
	path, by := s.configFile(cmd)
	switch {
	case path != "":
		return fmt.Sprintf("the configuration %s (%s)", path, by)
	case by == configVariable:
		return "no configuration file, since " + configVariable + " is empty"
	}
	return "no configuration file"
}

// LoadAndTell is Load for commands that somebody types. If the command line doesn't name the
// configuration file, it says on stderr, once, which one it is.
func (s *Source) LoadAndTell(cmd *cobra.Command) (*config.Config, error) {
	if path, by := s.configFile(cmd); path != "" && by != "--config" && !s.told {
		s.told = true
		fmt.Fprintf(cmd.ErrOrStderr(), "Using %s.\n", s.Used(cmd)) //nolint:errcheck // only a note
	}
	return s.Load(cmd)
}

// Load returns the configuration for `cmd`. It returns the configuration even if there is
// an error, which joins all problems that Load found.
func (s *Source) Load(cmd *cobra.Command) (*config.Config, error) {
	file, by := s.configFile(cmd)
	environ := slices.DeleteFunc(slices.Clone(s.Environ), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return isConfigVariable(entry) || slices.Contains(clientVariables, name)
	})
	cfg, err := config.Load(file, environ)
	switch {
	case errors.Is(err, fs.ErrNotExist) && by == "--config":
		err = fmt.Errorf("flag --config: %w", err)
	case errors.Is(err, fs.ErrPermission) && file == s.Machine:
		err = fmt.Errorf("%w. This is the machine's configuration: run the command as root or as the registry's user (sudo -u purser), "+
			"name another file by --config, or set %s to nothing to do without", err, configVariable)
	}
	problems := []error{err}
	for _, f := range settingFlags {
		if flag := cmd.Flags().Lookup(f.name); flag != nil && flag.Changed {
			problems = append(problems, cfg.Set(f.key, flag.Value.String(), "flag --"+f.name))
		}
	}
	for _, r := range s.replaced {
		problems = append(problems, cfg.Set(r.key, r.value, r.from))
	}
	_, wrong := DefaultPolicy(cfg)
	problems = append(problems, cfg.Validate(), wrong)
	err = errors.Join(problems...)
	if err != nil && ofFlag(err) {
		err = Usagef("%w", err)
	}
	return cfg, err
}

// ofFlag says whether `err`, an error of Load, contains a problem with a command-line flag.
func ofFlag(err error) bool {
	for line := range strings.Lines(err.Error()) {
		if strings.HasPrefix(line, "flag --") {
			return true
		}
	}
	return false
}

// DefaultPolicy parses the setting autoprune.default_policy. It returns nil if the setting
// is empty.
func DefaultPolicy(cfg *config.Config) (*policy.Policy, error) {
	if cfg.Autoprune.DefaultPolicy == "" {
		return nil, nil
	}
	p, err := policy.Parse([]byte(cfg.Autoprune.DefaultPolicy))
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", cfg.Source(policies.SettingName), policies.SettingName, err)
	}
	return &p, nil
}
