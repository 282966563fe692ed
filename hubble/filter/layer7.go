package filter

import (
	"fmt"
	"regexp"
	"strings"

	flowpb "github.com/cilium/cilium/api/v1/flow"
)

func (c *compiler) layer7(f *flowpb.FlowFilter) {
	http := func(f *flowpb.Flow) *flowpb.HTTP { return f.GetL7().GetHttp() }
	add(c, "dns_query", f.GetDnsQuery(), expression(func(f *flowpb.Flow) string {
		return f.GetL7().GetDns().GetQuery()
	}, func(f *flowpb.Flow) bool { return f.GetL7().GetDns() != nil }))
	isHTTP := func(f *flowpb.Flow) bool { return http(f).GetUrl() != "" }
	add(c, "http_url", f.GetHttpUrl(), expression(func(f *flowpb.Flow) string { return http(f).GetUrl() }, isHTTP))
	add(c, "http_path", f.GetHttpPath(), expression(func(f *flowpb.Flow) string { return path(http(f).GetUrl()) },
		isHTTP))
	add(c, "http_method", f.GetHttpMethod(), func(want string) (Match, error) {
		return func(f *flowpb.Flow) bool {
			return http(f).GetMethod() != "" && strings.EqualFold(http(f).GetMethod(), want)
		}, nil
	})
	add(c, "http_header", f.GetHttpHeader(), func(want *flowpb.HTTPHeader) (Match, error) {
		return func(f *flowpb.Flow) bool {
			for _, h := range http(f).GetHeaders() {
				if h.GetKey() == want.GetKey() && h.GetValue() == want.GetValue() {
					return true
				}
			}
			return false
		}, nil
	})
	add(c, "http_status_code", f.GetHttpStatusCode(), statusCode)
}

// path returns the path of a URL, or of a path alone.
func path(url string) string {
	if _, rest, ok := strings.Cut(url, "://"); ok {
		_, rest, _ = strings.Cut(rest, "/")
		url = "/" + rest
	}
	url, _, _ = strings.Cut(url, "?")
	url, _, _ = strings.Cut(url, "#")
	return url
}

func expression(of func(*flowpb.Flow) string, has func(*flowpb.Flow) bool) func(string) (Match, error) {
	return func(text string) (Match, error) {
		re, err := regexp.Compile(text)
		if err != nil {
			return nil, fmt.Errorf("%q is not a regular expression: %w", text, err)
		}
		return func(f *flowpb.Flow) bool { return has(f) && re.MatchString(of(f)) }, nil
	}
}

// statusCode matches "404", or those that begin with digits: "4+", "40+".
func statusCode(text string) (Match, error) {
	digits, prefix := strings.CutSuffix(text, "+")
	valid := regexp.MustCompile(`^[1-5][0-9]{2}$`)
	if prefix {
		valid = regexp.MustCompile(`^[1-5][0-9]?$`)
	}
	if !valid.MatchString(digits) {
		return nil, fmt.Errorf("%q is not a status code such as 404, or a prefix such as 5+", text)
	}
	return func(f *flowpb.Flow) bool {
		code := f.GetL7().GetHttp().GetCode()
		return code != 0 && strings.HasPrefix(fmt.Sprintf("%03d", code), digits)
	}, nil
}
