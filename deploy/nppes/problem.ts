/** Why an import did not begin, or stopped: one sentence for the operator that says what to do. */
export class ImportProblem extends Error {
  override readonly name = 'ImportProblem';
}
