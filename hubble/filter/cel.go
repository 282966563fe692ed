package filter

import (
	"fmt"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	"github.com/google/cel-go/cel"
)

// celFlow is what an expression calls the flow, as in Cilium: "flow" is a package's name.
const celFlow = "_flow"

// celCost bounds the evaluation of an expression, which a client has written, on one flow.
const celCost = 1 << 20

// expressions adds CEL expressions, of which one must be true.
func (c *compiler) expressions(list []string) {
	if len(list) == 0 {
		return
	}
	env, err := cel.NewEnv(cel.Container("flow"), cel.Types(&flowpb.Flow{}),
		cel.Variable(celFlow, cel.ObjectType("flow.Flow")))
	add(c, "experimental.cel_expression", list, func(text string) (Match, error) {
		if err != nil {
			return nil, fmt.Errorf("make an environment for CEL: %w", err)
		}
		return celMatch(env, text)
	})
}

// celMatch matches flows for which an expression is true. Where it has no value, such as a division by zero, it isn't.
func celMatch(env *cel.Env, text string) (Match, error) {
	ast, issues := env.Compile(text)
	if issues.Err() != nil {
		return nil, fmt.Errorf("%q is not a CEL expression: %s", text, issues.Errors()[0].Message)
	}
	if !ast.OutputType().IsExactType(cel.BoolType) {
		return nil, fmt.Errorf("%q is a CEL expression of type %s, want bool", text, ast.OutputType())
	}
	program, err := env.Program(ast, cel.CostLimit(celCost))
	if err != nil {
		return nil, fmt.Errorf("%q: %w", text, err)
	}
	return func(f *flowpb.Flow) bool {
		out, _, err := program.Eval(map[string]any{celFlow: f})
		return err == nil && out.Value() == true
	}, nil
}
