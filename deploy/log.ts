import { asyncLocalStorage } from '@temporalio/activity';
import { type DestinationStream, type Logger, pino, stdSerializers } from 'pino';
import { printableLines } from '../api/client/printable.ts';
import { traceOfLine } from '../db/traces.ts';
import { temporalUi } from './config/config.ts';

/**
 * Returns a logger that writes JSON lines.
 *
 * Callers log ids and numbers. Errors keep only type, code and stack frames, because a message may
 * contain user data. A line written inside an activity has the ids of its workflow, which are those
 * of the request, batch or delivery. A line about a batch has the ids of its trace, if traces are
 * on. If TEMPORAL_UI_URL is set, a line about a workflow has its link to the Temporal UI.
 * @param destination replaces standard output
 */
export function createLog(name: string, level: string, destination?: DestinationStream): Logger {
  const ui = temporalUi();
  const log = (line: Record<string, unknown>) => {
    // The id of a batch is also the id of its workflow.
    const id = line.workflow_id ?? line.batch_id;
    return id ? { ...line, temporal: `${ui}/${id}` } : line;
  };
  const formatters = ui === null ? {} : { log };
  const serializers = { err: serializeError };
  // Logs are read in terminals, so control characters are escaped. The line stays JSON with the
  // same value.
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
  // A gRPC failure has its code on its cause.
  const code = codeOf(error) ?? codeOf(error.cause);
  const frames = stack.split('\n').filter((line) => line.trimStart().startsWith('at '));
  return { type, ...(code === null ? {} : { code }), stack: frames.join('\n') };
}

function codeOf(error: unknown): string | number | null {
  const code = error instanceof Error && 'code' in error ? error.code : null;
  return typeof code === 'string' || typeof code === 'number' ? code : null;
}
