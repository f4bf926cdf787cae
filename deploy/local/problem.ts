/**
 * What goes wrong while a local server is being brought up. The message is one sentence for the person at the
 * terminal: what, where, what to do. The code is for programs: `port_taken`, `postgres_running`,
 * `postgres_failed`, `database_in_use`, `temporal_missing`, `temporal_failed`, `not_startable`, `usage`.
 */
export class LocalProblem extends Error {
  readonly code: string;

  constructor(code: string, message: string) {
    super(message);
    this.name = 'LocalProblem';
    this.code = code;
  }
}
