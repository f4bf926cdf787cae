import { asyncLocalStorage } from '@temporalio/activity';
import { type DestinationStream, type Logger, pino, stdSerializers } from 'pino';
import { printableLines } from '../api/client/printable.ts';
import { traceOfLine } from '../db/traces.ts';
import { temporalUi } from './config/config.ts';

/**
 * A logger of JSON lines. Callers pass ids and numbers; errors keep their
 * name, code and stack frames, because a message may hold what a user sent.
 * A line that is written inside an activity has the ids of its workflow: those of the request, batch or delivery. One
 * about a batch has those of its trace, if there are traces. With TEMPORAL_UI_URL set, a line about a workflow says where
 * the Temporal UI shows it.
 * @param destination in place of standard output
 */
export function createLog(name: string, level: string, destination?: DestinationStream): Logger {
  const ui = temporalUi();
  const log = (line: Record<string, unknown>) => {
    // That of a batch is the id of its workflow.
    const id = line.workflow_id ?? line.batch_id;
    return id ? { ...line, temporal: `${ui}/${id}` } : line;
  };
  const formatters = ui === null ? {} : { log };
  const serializers = { err: serializeError };
  // Logs are read in terminals. The line stays JSON of the same value.
  const hooks = { streamWrite: printableLines };
  const options = {
    name,
    level,
    serializers,
    base: { pid: process.pid },
    mixin: idsOfLine,
    formatters,
    hooks,
  };
  return destination ? pino(options, destination) : pino(options);
}

function idsOfLine(line: object) {
  const run = asyncLocalStorage.getStore()?.info.workflowExecution;
  return { ...(run && { workflow_id: run.workflowId, run_id: run.runId }), ...traceOfLine(line) };
}

function serializeError(error: unknown) {
  if (!(error instanceof Error)) return { type: typeof error };
  const { type, stack } = stdSerializers.err(error);
  // A failure of gRPC has its number on its cause.
  const code = codeOf(error) ?? codeOf(error.cause);
  const frames = stack.split('\n').filter((line) => line.trimStart().startsWith('at '));
  return { type, ...(code === null ? {} : { code }), stack: frames.join('\n') };
}

function codeOf(error: unknown): string | number | null {
  const code = error instanceof Error && 'code' in error ? error.code : null;
  return typeof code === 'string' || typeof code === 'number' ? code : null;
}
