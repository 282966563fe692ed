package sysdump

import (
	"encoding/base64"
	"encoding/hex"
	"regexp"
	"strings"
)

// redacted stands for a secret that was taken out.
const redacted = "<redacted>"

// minSecret is the length from which on a known secret is looked for everywhere, in bytes: shorter ones are part of
// ordinary words.
const minSecret = 8

// Redactor takes secrets out of text and objects: by the shape that keys and tokens have, by the names that they
// stand under, and by the values that it was told of.
type Redactor struct {
	known    []string
	replacer *strings.Replacer
	rules    []rule
}

// rule is a shape of secrets. The first group of the expression stays.
type rule struct {
	match *regexp.Regexp
	by    string
}

// NewRedactor returns one that knows no values.
func NewRedactor() *Redactor {
	const to = "${1}" + redacted
	return &Redactor{replacer: strings.NewReplacer(), rules: []rule{
		// PEM, also cut off, and as base64, which Secrets and kubeconfig files have.
		{
			regexp.MustCompile(
				`()-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----(?s:.*?)(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: ` +
					`BLOCK)?-----|\z)`,
			),
			to,
		},
		{regexp.MustCompile(`()LS0tLS1CRUdJTi[A-Za-z0-9+/=]+`), to},
		{regexp.MustCompile(`()eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]+){1,2}`), to}, // JWT, RFC 7519 section 3
		{regexp.MustCompile(`(?i)((?:proxy-)?authorization"?\s*[:=]\s*"?)[^"\n]+`), to},
		{regexp.MustCompile(`(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}`), to},
		{regexp.MustCompile(`(://)[^/\s"'@]+:[^/\s"'@]+@`), to + "@"}, // RFC 3986 section 3.2.1
		// Keys of IPsec behind the algorithm, as `ip xfrm state` and Cilium's Secret have them.
		{
			regexp.MustCompile(
				`(?i)((?:rfc[0-9]+|hmac|cmac|xcbc|cbc|ctr|gcm|ccm|ecb|seqiv|echainiv|digest_null|` +
					`cipher_null)[a-z0-9_-]*\([^\s"]*\)\s+)(?:0x)?[0-9a-f]{8,}`,
			),
			to,
		},
		{regexp.MustCompile(`()0x[0-9a-fA-F]{32,}`), to},
	}}
}

// learn has values taken out wherever they stand, as they are and in base64 and hexadecimal digits. Short values are
// passed over.
func (r *Redactor) learn(values ...string) {
	for _, v := range values {
		for _, v := range []string{v, strings.TrimSpace(v)} {
			if len(v) >= minSecret {
				r.known = append(
					r.known,
					v,
					base64.StdEncoding.EncodeToString([]byte(v)),
					base64.URLEncoding.EncodeToString([]byte(v)),
					base64.RawStdEncoding.EncodeToString([]byte(v)),
					base64.RawURLEncoding.EncodeToString([]byte(v)),
					hex.EncodeToString([]byte(v)),
					strings.ToUpper(hex.EncodeToString([]byte(v))),
				)
			}
		}
	}
	var pairs []string
	for _, v := range r.known {
		pairs = append(pairs, v, redacted)
	}
	r.replacer = strings.NewReplacer(pairs...)
}

// text takes secrets out of text of any kind.
func (r *Redactor) text(text string) string {
	text = r.replacer.Replace(text)
	for _, rule := range r.rules {
		text = rule.match.ReplaceAllString(text, rule.by)
	}
	return namedValues(rawKeys(text))
}

// keyShape matches 32 bytes in base64, as keys of WireGuard are written.
var keyShape = regexp.MustCompile(`[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=`)

// publicMark is what a public key stands behind: "public key: …", "wg-pub-key=…", "peer: …".
var publicMark = regexp.MustCompile(`(?i)(?:pub(?:lic)?[ _-]?key|peer)["'\\]*\s*[:=]?\s*["'\\]*$`)

// rawKeys takes out what looks like a key, unless it is called a public one.
func rawKeys(text string) string {
	var b strings.Builder
	end := 0
	for _, at := range keyShape.FindAllStringIndex(text, -1) {
		before := text[max(0, at[0]-1):at[0]]
		if isBase64(before) || isBase64(text[at[1]:min(len(text), at[1]+1)]) { // a part of something longer
			continue
		}
		if publicMark.MatchString(text[max(0, at[0]-40):at[0]]) {
			continue
		}
		b.WriteString(text[end:at[0]] + redacted)
		end = at[1]
	}
	return b.String() + text[end:]
}

func isBase64(s string) bool {
	return s != "" && strings.Contains("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=", s)
}

// assignment matches NAME: VALUE and NAME=VALUE of text, JSON, JSON in a string, and flags.
var assignment = regexp.MustCompile(
	`(["'\\]*)\b([\w./-]+|(?i:(?:private|preshared|secret|api|access|encryption|auth)[ _-]key))(["'\\]*[ ` +
		`\t]*[:=][ \t]*)` +
		`(\\"(?:[^"\\]|\\[^"])*\\"|"(?:[^"\\]|\\.)*"|'[^']*'|[^\s"'\\,;{}\[\]][^\n"'\\,;{}\[\]]*)`,
)

// flagValue matches --NAME VALUE of a command line.
var flagValue = regexp.MustCompile(`(--?)([\w-]+)([ \t]+)([^\s"'-][^\s"']*)`)

// namedValues takes out what stands behind the name of a secret.
func namedValues(text string) string {
	for _, shape := range []*regexp.Regexp{assignment, flagValue} {
		var b strings.Builder
		for {
			at := shape.FindStringSubmatchIndex(text)
			if at == nil {
				break
			}
			name, value := text[at[4]:at[5]], text[at[8]:at[9]]
			if !secretName(name) || harmless(value) {
				// A value may hold the next assignment: go on behind the name.
				b.WriteString(text[:at[7]])
				text = text[at[7]:]
				continue
			}
			b.WriteString(text[:at[8]] + quoteOf(value) + redacted + quoteOf(value))
			text = text[at[9]:]
		}
		text = b.String() + text
	}
	return text
}

func quoteOf(value string) string {
	for _, q := range []string{`\"`, `"`, `'`} {
		if strings.HasPrefix(value, q) {
			return q
		}
	}
	return ""
}

// harmless reports whether a value says nothing: a switch, nothing at all, or what was redacted before.
func harmless(value string) bool {
	switch strings.ToLower(strings.Trim(strings.TrimSpace(value), `"'\`)) {
	case "", "true", "false", "null", "none", "nil", "~", "|", "|-", ">", ">-", redacted:
		return true
	}
	return false
}

// secretWords are parts of names that secrets have, in lower case and without what joins words.
var secretWords = regexp.MustCompile(
	`passw(?:or)?d|passphrase|secret|token|apikey|privatekey|privkey|presharedkey|credential|` +
		`keydata|accesskey|encryptionkey|authkey|hashseed|fastopenkey|dockerconfig|^pass$|^pwd$|^psk$`,
)

// plainNames look like those of secrets, and name something else.
var plainNames = regexp.MustCompile(
	`^(?:secretname|secretref|secretkeyref|imagepullsecrets?|secretnamespace|secrettype|` +
		`automountserviceaccounttoken|serviceaccounttoken|(?:token)?expirationseconds|tokenreviews?|tokenrequests?)$`,
)

// secretName reports whether what stands under a name is a secret.
func secretName(name string) bool {
	name = strings.NewReplacer("-", "", "_", "", ".", "", "/", "", " ", "").Replace(strings.ToLower(name))
	return secretWords.MatchString(name) && !plainNames.MatchString(name)
}
