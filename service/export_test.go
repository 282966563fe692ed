package service

// StatesFile is for tests in package service_test.
const StatesFile = statesFile

// OperatorState is for tests in package service_test.
func (s *Services) OperatorState(a L4Addr) State { return s.operatorState(a) }
