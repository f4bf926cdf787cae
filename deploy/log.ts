import { type DestinationStream, type Logger, pino, stdSerializers } from 'pino';
import { temporalUi } from './config/config.ts';

/**
 * A logger of JSON lines. Callers pass ids and numbers; errors keep their
 * name, code and stack frames, because a message may hold what a user sent.
 * With TEMPORAL_UI_URL set, a line about a workflow says where the Temporal UI shows it.
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
  const options = {
    name,
    level,
    serializers: { err: serializeError },
    base: { pid: process.pid },
    formatters,
  };
  return destination ? pino(options, destination) : pino(options);
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
